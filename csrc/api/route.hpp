// Tokens sorted by expert: check, select, launch, in that order.
#pragma once

#include <pybind11/pybind11.h>

#include "forms/check_routing.hpp"

namespace gg {

// (ends, token, slot, inverse), new int32 arrays on a CUDA device. OnCpu for arrays on the CPU, which are only checked.
pybind11::object route(const RouteArguments& arguments);

}  // namespace gg
