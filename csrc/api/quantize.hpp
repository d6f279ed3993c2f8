// Rows in e4m3 with a scale for each 128 columns: check, nothing to do, select, launch, in that order.
#pragma once

#include <pybind11/pybind11.h>

namespace gg {

// (e4m3 [rows, K], float32 [rows, K / 128]); OnCpu for arrays on the CPU, which are only checked; Ellipsis for what
// stands for others.
pybind11::object quantize_1x128(pybind11::handle x);

}  // namespace gg
