#include "select/tuned.hpp"

#include <algorithm>

namespace gg {
namespace {

bool less(const gg_tuned_row& x, const gg_tuned_row& y) {
  if (x.gpu != y.gpu) return x.gpu < y.gpu;
  if (x.dtype != y.dtype) return x.dtype < y.dtype;
  if (x.layout != y.layout) return x.layout < y.layout;
  return x.shape < y.shape;
}

}  // namespace

const gg_tuned_row* tuned_for(int gpu, gg_dtype dtype, gg_layout layout, uint64_t key) {
  const gg_tuned_row* end = gg_tuned_rows + gg_tuned_row_count;
  const gg_tuned_row wanted{gpu, dtype, layout, key, 0, 0};
  const gg_tuned_row* row = std::lower_bound(gg_tuned_rows, end, wanted, less);
  return row == end || less(wanted, *row) ? nullptr : row;
}

}  // namespace gg
