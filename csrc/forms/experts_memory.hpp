// The workspace of a layer of experts: what lies where in one block of memory.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gg {

// x [tokens, hidden], w1 [experts, hidden, up_columns], w2 [experts, intermediate, hidden], of 16 bits each; up_columns
// is 2 intermediate where the activation is gated.
struct ExpertsSizes {
  int64_t tokens, top_k, experts, hidden, up_columns, intermediate;

  int64_t rows() const { return tokens * top_k; }
};

// Offsets from the workspace in bytes; rows have strides in elements, each a multiple of 16 bytes, so that alignment
// rules out no kernel. The memory of the rows is used more than once:
//
//   gathered, sums     rows of x, w1's columns of sums: where the up projection goes by parts
//   activated          read by the down projection. In the memory of `gathered` where that is not read any more
//   down               the down projection's rows
struct ExpertsMemory {
  size_t ends, token, slot, inverse, counts;
  size_t gathered, sums, activated, down;
  int64_t hidden_row, sums_row, activated_row;
  size_t bytes;
};

// Every address in it, and so the workspace, is on a multiple of this.
constexpr size_t workspace_alignment = 128;

// For calls of up to so many tokens, whatever the GPU and whichever kernels: it grows with each of the sizes. Nothing
// where there are no rows. Throws ValueError where it would reach past the address space.
ExpertsMemory experts_memory(const ExpertsSizes& sizes);

// How many of the tokens go at once where the workspace is to hold no more than max_rows rows; 0: all. One at least.
int64_t tokens_at_once(const ExpertsSizes& sizes, int64_t max_rows);

}  // namespace gg
