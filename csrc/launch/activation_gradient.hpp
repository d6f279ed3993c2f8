// The launch that goes back through an activation, row by row.
#pragma once

#include <cstdint>

#include "arrays/tensor.hpp"
#include "driver/driver.hpp"
#include "forms/grouped_problem.hpp"
#include "launch/repeated_launch.hpp"

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
  gg_activation kind = GG_ACTIVATION_NONE;
  gg_gate_order order = GG_GATE_FIRST;
  uint64_t dz = 0;
  int64_t dz_row = 0, dz_col = 1;
  uint64_t h = 0;
  int64_t h_row = 0, h_col = 1;
  uint64_t dweights = 0;  // float32 [entries]
  gg_dtype dtype = GG_ANY_DTYPE;
};

// The kernel that is taken.
const gg_artifact& kernel_of(const GradientRows& gradient, const Device& device);

// Ready to be run, again and again. There have to be rows; of columns there may be none, and gradients of weights are
// then zeros.
RepeatedLaunch prepared(const GradientRows& gradient, const Device& device);

}  // namespace gg
