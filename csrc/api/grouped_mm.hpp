// The product of a matrix whose rows fall into groups: check, select, launch, in that order.
#pragma once

#include <pybind11/pybind11.h>

#include "forms/check_grouped.hpp"

namespace gg {

// The output, a new one or `out`, for arrays on a CUDA device. For arrays on the CPU, which are only checked, the name
// of the dtype that the output is to have.
pybind11::object grouped_mm(const GroupedArguments& arguments);

}  // namespace gg
