// The launch that makes e4m3 and its scales of rows. Addresses in bytes, strides in elements.
#pragma once

#include <cstdint>

#include "driver/driver.hpp"
#include "launch/repeated_launch.hpp"

namespace gg {

// out[r, c] = x[r, c] / scales[r, c / 128], where scales[r, b] is the largest magnitude of 128 columns by 448.
struct QuantizeRows {
  uint64_t x = 0;
  int64_t x_row = 0, x_col = 1;
  int64_t rows = 0, columns = 0;
  uint64_t out = 0;  // e4m3 [rows, columns]
  int64_t out_row = 0;
  uint64_t scales = 0;  // float32 [rows, ceil(columns / 128)], contiguous
  gg_dtype dtype = GG_ANY_DTYPE;
};

// Ready to be run, again and again. There have to be rows and columns. Throws UnsupportedError where the device has no
// fp8.
RepeatedLaunch prepared(const QuantizeRows& quantize, const Device& device);

}  // namespace gg
