// The keys of csrc, for a test that has others beside them.
#include "forms/table_key.hpp"

extern "C" uint64_t list_key(const int64_t* sizes, int runs) {
  gg::ListKey key;
  for (int i = 0; i < runs; i++) key.add(sizes[4 * i], sizes[4 * i + 1], sizes[4 * i + 2], sizes[4 * i + 3]);
  return key.value();
}

extern "C" uint64_t layer_key(int64_t groups, int64_t n, int64_t k, int64_t load) {
  return gg::layer_key(groups, n, k, load);
}

extern "C" int64_t load_of(int64_t rows, int64_t groups) { return gg::load_of(rows, groups); }

extern "C" uint64_t signed_key(uint64_t key, int epilogue, int source) {
  return gg::signed_key(key, static_cast<gg_epilogue>(epilogue), static_cast<gg_source>(source));
}
