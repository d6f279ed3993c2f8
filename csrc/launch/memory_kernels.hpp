// Launches that move rows around a product: `gather` before it, `activate` or `add_parts` after it. Addresses in bytes,
// strides in elements.
#pragma once

#include <cstdint>

#include "abi/artifact.h"
#include "arrays/tensor.hpp"
#include "driver/driver.hpp"
#include "forms/gradient_rows.hpp"
#include "forms/grouped_problem.hpp"
#include "launch/repeated_launch.hpp"

namespace gg {

// out[r] = source[index[r]], for r below `rows`: zeros where the index is not in [0, source_rows). dtype: fp16 or bf16.
struct GatherRows {
  uint64_t source = 0;
  int64_t source_row = 0, source_rows = 0;
  uint64_t index = 0;  // integers of `index_bytes`, one behind the other
  int index_bytes = 4;
  uint64_t out = 0;
  int64_t out_row = 0, rows = 0, columns = 0;
  gg_dtype dtype = GG_ANY_DTYPE;
  // int32 [groups] on the device, which rise and are not negative; rows from the last on are neither read nor written.
  // 0: all rows are.
  uint64_t ends = 0;
  int64_t groups = 0;
  // A factor of each row, row_weights[weight_index[r]], before it is rounded; 0 where weight_index[r], an int32, is
  // negative. 0: none.
  uint64_t row_weights = 0;
  int weight_kind = 0;  // of weight_kind() in forms/gradient_rows.hpp
  uint64_t weight_index = 0;
  int64_t source_col = 1;
};

// out[r, c] = the activation of row r of z: of z[r, c], or of gate and up where it is gated, and z then has twice as
// many columns. z may be `out` where it is not. Computed in float32 and rounded once; dtype: fp16 or bf16.
struct Activate {
  uint64_t z = 0;
  int64_t z_row = 0;
  uint64_t out = 0;
  int64_t out_row = 0, rows = 0, columns = 0;  // columns: of out
  gg_dtype dtype = GG_ANY_DTYPE;
  Activation activation;
  uint64_t ends = 0;  // as above
  int64_t groups = 0;
  int64_t z_col = 1, out_col = 1;
  // Of a stack: `rows` are those of all matrices, group_rows of each, which lie so far apart. counts: int32 [groups] on
  // the device, rows of each matrix; those past them are neither read nor written. 0: all are.
  int64_t group_rows = 0, z_group = 0, out_group = 0;
  uint64_t counts = 0;
};

// out[g] = alpha * (the sum of sums[g, s] by rising s) + beta * out[g], computed in float32 and rounded once. `sums`:
// float32 [groups, parts, rows, columns], contiguous. dtype: fp16, bf16 or fp32.
struct AddParts {
  uint64_t sums = 0;
  int64_t parts = 1, groups = 0, rows = 0, columns = 0;
  uint64_t out = 0;
  int64_t out_group = 0, out_row = 0, out_col = 1;
  gg_dtype dtype = GG_ANY_DTYPE;
  Factors factors;
};

// Ready to be run, again and again. There have to be rows and columns. Throws ValueError, of `function`, where there
// are too many.
RepeatedLaunch prepared(const GatherRows& gather, const char* function, const Device& device);
RepeatedLaunch prepared(const Activate& activate, const char* function, const Device& device);
RepeatedLaunch prepared(const AddParts& sum, const char* function, const Device& device);

// Whether rows of 16 bits can be moved by 16 bytes: those that are left out can.
inline bool moves_by_vectors(uint64_t address, int64_t rows, int64_t row, int64_t column = 1) {
  return address == 0 || (address % 16 == 0 && column == 1 && (rows <= 1 || row % 8 == 0));
}

// What the model thinks of a launch that moves so many bytes, read or written: a copy's rate.
double moving_us(double bytes, const Device& device);

// The kernel that is taken, and what the model thinks of its time: its bytes at the GPU's rate.
struct MemoryChoice {
  const gg_artifact* artifact;
  double predicted_us;
};
MemoryChoice choice_of(const GatherRows& gather, const Device& device);
MemoryChoice choice_of(const Activate& activate, const Device& device);
MemoryChoice choice_of(const AddParts& sum, const Device& device);

}  // namespace gg
