// A validated ragged product, free of any framework: rows of A fall into groups, each with a matrix of B of its own.
#pragma once

#include <cstdint>

#include "artifact.h"
#include "promise.hpp"

namespace gg {

// C[end[g-1]:end[g]] = scale_a scale_b[g] A[the same rows] @ B[g] + bias[g], where end[g] is offs[g], kept between
// end[g-1] and `rows` by the kernel; rows past the last end are 0. Addresses in bytes, strides in elements.
struct Ragged {
  gg_dtype dtype, out_dtype;
  uint64_t a, b, c;
  int64_t a_row, a_col, b_group, b_row, b_col, c_row, c_col;
  int64_t groups, rows, columns, depth;  // E, rows of A and C, N, K
  uint64_t offs;
  uint64_t bias;  // [E, N] of the outputs' dtype, or 0
  int64_t bias_row, bias_col;
  uint64_t scale_a, scale_b;  // float32, or 0: 1
  int64_t scale_b_step;       // elements from the scale of a group to the next's, 0 where they share one
  bool batch_invariant;       // the kernel is not to depend on `rows`
  Masks keeps;
};

// Replaces strides that are never used and works out `keeps` from the other fields.
void finish(Ragged& ragged);

// At most this many row tiles of block_m have rows, whatever the split; rows past the last end are one more group.
int64_t row_tile_bound(const Ragged& ragged, int block_m);

}  // namespace gg
