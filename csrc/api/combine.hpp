// The rows of each token's experts, summed: check, nothing to do, select, launch, in that order.
#pragma once

#include <pybind11/pybind11.h>

#include "forms/check_routing.hpp"

namespace gg {

// The sums, new or `out`, on a CUDA device. OnCpu for arrays on the CPU, which are only checked.
pybind11::object combine(const CombineArguments& arguments);

}  // namespace gg
