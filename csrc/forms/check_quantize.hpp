// What quantize_1x128 is given: checked, and free of any framework.
#pragma once

#include <pybind11/pybind11.h>

#include "arrays/tensor.hpp"
#include "forms/checks.hpp"

namespace gg {

struct CheckedQuantize : CheckedCall {
  Tensor x{};
  int64_t rows, columns, blocks;  // blocks: of 128 columns, the last one may be less
};

// Throws TypeError or ValueError that names the argument, and RuntimeError where it requires grad.
CheckedQuantize check_quantize(pybind11::handle x);

}  // namespace gg
