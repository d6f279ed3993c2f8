// The workspace of a layer of experts: what lies where in one block of memory.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gg {

// x [tokens, hidden], w1 [experts, hidden, up_columns], w2 [experts, intermediate, hidden], of 16 bits each; up_columns
// is 2 intermediate where the activation is gated. `quantized`: w1 and w2 are e4m3 with scales of blocks, and so is
// what they are multiplied with.
struct ExpertsSizes {
  int64_t tokens, top_k, experts, hidden, up_columns, intermediate;
  bool quantized = false;

  int64_t rows() const { return tokens * top_k; }
  bool gated() const { return up_columns != intermediate; }
};

// Where rows lie, in bytes from the start of the workspace. Their memory is used more than once.
struct ExpertsRows {
  size_t gathered;   // rows of x, where a kernel of its own gathers or quantizes them
  size_t sums;       // of an activation that a kernel of its own takes
  size_t activated;  // what the down projection reads: not in `gathered` or `sums` while these are read
  size_t down;       // the down projection's: not in `activated`
  size_t end;
  size_t gathered_scales, activated_scales;  // of e4m3 rows, a float32 for each 128 columns
};

// Offsets from the workspace in bytes; strides of rows in elements, each a multiple of 16 bytes, so that alignment
// rules out no kernel.
struct ExpertsMemory {
  size_t ends, token, slot, inverse, counts;
  ExpertsRows with_sums, without_sums;  // by whether sums of the up projection pass through memory
  int64_t gathered_row, sums_row, activated_row, hidden_row;
  size_t bytes;
};

// Every address in it, and so the workspace, is on a multiple of this.
constexpr size_t workspace_alignment = 128;

// For calls of up to so many tokens, whatever the GPU and whichever kernels: it grows with each of the sizes. Nothing
// where there are no rows. Throws ValueError, of `function`, where it would reach past the address space.
ExpertsMemory experts_memory(const ExpertsSizes& sizes, const char* function);

// How many of the tokens go at once where the workspace is to hold no more than max_rows rows; 0: all. One at least.
int64_t tokens_at_once(const ExpertsSizes& sizes, int64_t max_rows);

}  // namespace gg
