// A layer of experts: check, nothing to do, route, up, down, combine, in that order.
#pragma once

#include <pybind11/pybind11.h>

#include "forms/check_experts.hpp"

namespace gg {

// The layer's output, new or `out`, on a CUDA device. OnCpu for arrays on the CPU, which are only checked.
pybind11::object fused_experts(const ExpertsArguments& arguments);

}  // namespace gg
