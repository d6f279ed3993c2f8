// The launch that makes e4m3 and its scales of rows. Addresses in bytes, strides in elements.
#pragma once

#include <cstdint>

#include "driver/driver.hpp"
#include "launch/memory_kernels.hpp"
#include "launch/repeated_launch.hpp"

namespace gg {

// out[r, c] = v[r, c] / scales[r, c / 128], where scales[r, b] is the largest magnitude of 128 columns by 448, and v is
// x, rows of x by an index, or what an activation makes of x.
struct QuantizeRows {
  uint64_t x = 0;
  int64_t x_row = 0, x_col = 1;
  int64_t rows = 0, columns = 0;  // of `out`
  uint64_t out = 0;               // e4m3 [rows, columns]
  int64_t out_row = 0;
  uint64_t scales = 0;  // float32 [rows, ceil(columns / 128)]
  int64_t scale_row = 0, scale_col = 1;
  gg_dtype dtype = GG_ANY_DTYPE;  // of x
  // int32 [groups] on the device, which rise and are not negative; rows from the last on are neither read nor written.
  // 0: all rows are.
  uint64_t ends = 0;
  int64_t groups = 0;
  // Without an activation: int32 [rows], the row of x that becomes each row, zeros where it is not in [0, x_rows); or
  // 0. And a factor of each row's scales, row_weights[weight_index[r]]: 0 where weight_index[r], an int32, is negative;
  // or 0.
  uint64_t index = 0;
  int64_t x_rows = 0;
  uint64_t row_weights = 0;
  int weight_kind = 0;  // of weight_kind() in forms/gradient_rows.hpp
  uint64_t weight_index = 0;
  Activation activation;  // where it is gated x has twice as many columns
  // Without an activation: may begin before the launch ahead of it ends, which neither writes what is read here nor
  // reads or writes what is written.
  bool overlaps = false;
};

// Ready to be run, again and again. There have to be rows and columns. `function` is named in errors. Throws
// UnsupportedError where the device has no fp8.
RepeatedLaunch prepared(const QuantizeRows& quantize, const char* function, const Device& device);

MemoryChoice choice_of(const QuantizeRows& quantize, const char* function, const Device& device);

}  // namespace gg
