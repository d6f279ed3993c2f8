// The product of a matrix whose rows fall into groups: check, nothing to do, select, launch, in that order.
#pragma once

#include <pybind11/pybind11.h>

#include "forms/check_grouped.hpp"

namespace gg {

// The output, a new one or `out`, for arrays on a CUDA device. OnCpu for arrays on the CPU, which are only checked.
// `variant` names an embedded artifact to take, or is None.
pybind11::object grouped_mm(const GroupedArguments& arguments, pybind11::handle variant);

}  // namespace gg
