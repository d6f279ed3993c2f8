// The launch that sums the rows of each token.
#pragma once

#include <cstdint>

#include "arrays/tensor.hpp"
#include "driver/driver.hpp"
#include "launch/repeated_launch.hpp"

namespace gg {

// Addresses, and strides of rows in elements; 0 where there are no weights, or nothing is added.
struct SumRows {
  uint64_t y = 0;
  int64_t y_row = 0, rows = 0;
  uint64_t inverse = 0;  // int32 [tokens, top_k]
  int64_t tokens = 0, top_k = 0, columns = 0;
  uint64_t weights = 0;
  gg_dtype weight_dtype = GG_FP32;
  uint64_t added = 0;
  int64_t added_row = 0;
  uint64_t out = 0;
  int64_t out_row = 0;
  gg_dtype dtype = GG_ANY_DTYPE;
  double scale = 1;
};

// The kernel that is taken.
const gg_artifact& kernel_of(const SumRows& sum, const Device& device);

// Ready to be run, again and again. There have to be tokens and columns. Throws ValueError of `function` where they are
// more than a launch takes.
RepeatedLaunch prepared(const SumRows& sum, const char* function, const Device& device);

}  // namespace gg
