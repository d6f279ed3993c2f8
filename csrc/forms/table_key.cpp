#include "forms/table_key.hpp"

#include <cmath>
#include <initializer_list>

namespace gg {
namespace {

constexpr uint64_t layer_seed = 0x6c61796572;  // "layer": keeps keys of layers apart from those of lists

// The finalizer of splitmix64.
uint64_t mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9ull;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

}  // namespace

void ListKey::add(int64_t m, int64_t n, int64_t k, int64_t count) {
  const uint64_t size =
      mix64(mix64(mix64(static_cast<uint64_t>(m)) + static_cast<uint64_t>(n)) + static_cast<uint64_t>(k));
  sizes_ += static_cast<uint64_t>(count) * size;
  groups_ += static_cast<uint64_t>(count);
}

uint64_t ListKey::value() const { return sizes_ + mix64(groups_); }

int64_t load_of(int64_t rows, int64_t groups) {
  return std::lround(2 * std::log2(static_cast<double>(rows) / static_cast<double>(groups)));
}

uint64_t layer_key(int64_t groups, int64_t n, int64_t k, int64_t load) {
  uint64_t key = mix64(layer_seed);
  for (const int64_t size : {groups, n, k, load}) key = mix64(key + static_cast<uint64_t>(size));
  return key;
}

uint64_t signed_key(uint64_t key, gg_epilogue epilogue, gg_source source) {
  if (epilogue == GG_LINEAR && source == GG_SOURCE_ROWS) return key;
  return mix64(key + static_cast<uint64_t>(epilogue) * GG_SOURCE_COUNT + static_cast<uint64_t>(source));
}

}  // namespace gg
