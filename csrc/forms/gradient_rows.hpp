// What goes back through an activation, row by row: free of any framework.
#pragma once

#include <cstdint>

#include "abi/artifact.h"
#include "forms/activation.hpp"

namespace gg {

// Addresses in bytes, strides in elements; 0 where an array is left out. Rows from the last of `ends` on are neither
// read nor written.
struct GradientRows {
  uint64_t z = 0;
  int64_t z_row = 0, z_col = 1;
  uint64_t dh = 0;
  int64_t dh_row = 0, dh_col = 1;
  int64_t rows = 0, columns = 0;  // of dh
  uint64_t weights = 0;           // [entries]
  gg_dtype weight_dtype = GG_FP32;
  uint64_t slot = 0;  // int32 [rows]
  int64_t entries = 0;
  double scale = 1;
  uint64_t ends = 0;  // int32 [groups]
  int64_t groups = 0;
  Activation activation;  // nothing is kept
  uint64_t dz = 0;
  int64_t dz_row = 0, dz_col = 1;
  uint64_t h = 0;
  int64_t h_row = 0, h_col = 1;
  uint64_t dweights = 0;  // float32 [entries]
  gg_dtype dtype = GG_ANY_DTYPE;
  // Of a kernel that does the product too, or 0: float32 [tiles of columns, rows], which are to be added up; `dweights`
  // itself where one tile has all columns.
  uint64_t row_sums = 0;
};

// Kernels' number of a dtype of weights: 0 for fp32, 1 for fp16, 2 for bf16.
inline int32_t weight_kind(gg_dtype dtype) { return dtype == GG_FP16 ? 1 : dtype == GG_BF16 ? 2 : 0; }

}  // namespace gg
