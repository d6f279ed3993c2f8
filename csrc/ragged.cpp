#include "ragged.hpp"

#include <algorithm>

#include "dtype.hpp"

namespace gg {
namespace {

// Of A's and C's descriptors, which count a group's rows back from 2^30 (see ragged_words.cpp): elements, and rows.
constexpr int64_t row_stride_limit = int64_t{1} << 33, row_limit = int64_t{1} << 30;

}  // namespace

void finish(Ragged& r) {
  // One row has no stride that could break a promise; but the kernel is not to depend on that either.
  const int64_t rows = r.batch_invariant ? std::max<int64_t>(r.rows, 2) : r.rows;
  if (r.rows == 1) {  // a stride that no second row could have: what it would have
    if (r.a_col == 1) r.a_row = std::max(r.a_row, r.depth);
    if (r.c_col == 1) r.c_row = std::max(r.c_row, r.columns);
  }
  free_strides(rows, r.depth, r.a_row, r.a_col);
  free_strides(r.depth, r.columns, r.b_row, r.b_col);
  free_strides(rows, r.columns, r.c_row, r.c_col);
  if (r.groups <= 1) r.b_group = std::max(r.b_row, r.b_col);

  const int bytes = element_bytes(r.dtype), out_bytes = element_bytes(r.out_dtype);
  Promise a[2] = {promise(r.a, r.depth, r.a_col, rows, r.a_row, bytes),
                  promise(r.a, rows, r.a_row, r.depth, r.a_col, bytes)};
  Promise b[2] = {promise(r.b, r.columns, r.b_col, r.depth, r.b_row, bytes),
                  promise(r.b, r.depth, r.b_row, r.columns, r.b_col, bytes)};
  for (Promise& of_b : b) {
    of_b.vectorized &= fills_16_bytes(r.b_group, bytes);
    of_b.described &= is_describable(r.b_group, bytes);
  }
  Promise c = promise(r.c, r.columns, r.c_col, rows, r.c_row, out_bytes);
  a[0].described &= r.a_row < row_stride_limit;
  c.described &= r.c_row < row_stride_limit && r.rows <= row_limit;
  r.keeps = Masks{};
  r.keeps.restrict(a, b, c, r.depth > 0 && r.groups > 0);
}

int64_t row_tile_bound(const Ragged& r, int block_m) {
  const int64_t parts = std::min(r.groups + 1, r.rows);
  return parts + (r.rows - parts) / block_m;
}

}  // namespace gg
