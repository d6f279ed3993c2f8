#include "tuned.hpp"

#include <algorithm>
#include <cmath>

namespace gg {
namespace {

constexpr uint64_t layer_seed = 0x6c61796572;  // "layer": keeps keys of layers apart from those of lists

uint64_t mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9ull;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// Half powers of two of rows a group.
int64_t load_of(const GroupedProblem& ragged) {
  return std::lround(2 * std::log2(static_cast<double>(ragged.rows) / static_cast<double>(ragged.groups)));
}

bool less(const gg_tuned_row& x, const gg_tuned_row& y) {
  if (x.gpu != y.gpu) return x.gpu < y.gpu;
  if (x.dtype != y.dtype) return x.dtype < y.dtype;
  if (x.layout != y.layout) return x.layout < y.layout;
  return x.shape < y.shape;
}

}  // namespace

uint64_t size_key(int64_t m, int64_t n, int64_t k) {
  return mix64(mix64(mix64(static_cast<uint64_t>(m)) + static_cast<uint64_t>(n)) + static_cast<uint64_t>(k));
}

uint64_t shape_key(const ListProblem& problem) {
  uint64_t key = mix64(problem.groups.size());
  for (const Run& run : problem.runs) key += static_cast<uint64_t>(run.count) * size_key(run.m, run.n, run.k);
  return key;
}

uint64_t layer_key(const GroupedProblem& ragged) {
  uint64_t key = mix64(layer_seed);
  if (ragged.groups == 0) return key;  // of no layer
  for (const int64_t size : {ragged.groups, ragged.columns, ragged.depth, load_of(ragged)}) {
    key = mix64(key + static_cast<uint64_t>(size));
  }
  return key;
}

const gg_artifact* tuned_for(int gpu, gg_dtype dtype, gg_layout layout, uint64_t key) {
  const gg_tuned_row* end = gg_tuned_rows + gg_tuned_row_count;
  const gg_tuned_row wanted{gpu, dtype, layout, key, 0};
  const gg_tuned_row* row = std::lower_bound(gg_tuned_rows, end, wanted, less);
  return row == end || less(wanted, *row) ? nullptr : &gg_artifacts[row->artifact];
}

}  // namespace gg
