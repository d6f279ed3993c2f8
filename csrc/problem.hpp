// A validated problem list, free of any framework: what select, list and launch work on.
#pragma once

#include <cstdint>
#include <vector>

#include "artifact.h"
#include "promise.hpp"

namespace gg {

// One product C [m, n] = scale_a scale_b A [m, k] @ B [k, n]. Addresses in bytes, strides in elements.
struct Group {
  uint64_t a, b, c;
  int64_t a_row, a_col, b_row, b_col, c_row, c_col;
  int64_t m, n, k;
  uint64_t scale_a, scale_b;  // of a float32 each; 0: the scale is 1
  int32_t index;              // in the caller's lists
  bool turned = false;        // computed as C^T = B^T A^T: `a` is the caller's B
};

// Groups of one size that follow each other.
struct Run {
  int64_t m, n, k, count;
};

struct Problem {
  gg_dtype dtype = GG_ANY_DTYPE, out_dtype = GG_ANY_DTYPE;
  std::vector<Group> groups;  // those with output elements, by falling K
  std::vector<Run> runs;      // the sizes of `groups`, for those who ask about each kernel
  Masks keeps;                // what all groups keep
};

// Turns the group so that C has unit column stride if it can: C^T = B^T A^T is the same product.
// Strides along dimensions of size 1 or 0 are never used; they are replaced by what any kernel accepts.
Group canonical(Group group);

// Sorts, drops empty groups and works out what they keep. Sizes are at least 0 and below 2^31. Throws ValueError where
// the outputs have more elements than there are addresses.
Problem make_problem(gg_dtype dtype, gg_dtype out_dtype, const std::vector<Group>& groups);

// ceil(size / block) for a block that is a power of two, as all are: this runs some hundred times a call, and division
// is slow.
inline int64_t tiles_along(int64_t size, int block) {
  return (size + block - 1) >> __builtin_ctz(static_cast<unsigned>(block));
}

// What one group keeps.
Masks keeps(const Group& group, gg_dtype dtype, gg_dtype out_dtype);

// The groups of a problem for which `wanted` is set, as a problem of their own.
Problem subset(const Problem& problem, const std::vector<bool>& wanted);

// Output tiles of a group, and of the whole list, for tiles of block_m x block_n.
inline int64_t tile_count(const Group& group, int block_m, int block_n) {
  return tiles_along(group.m, block_m) * tiles_along(group.n, block_n);
}
int64_t tile_count(const Problem& problem, int block_m, int block_n);

}  // namespace gg
