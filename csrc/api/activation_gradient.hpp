// Back through the activation of a layer: check, nothing to do, select, launch, in that order.
#pragma once

#include <pybind11/pybind11.h>

#include "forms/check_activation_gradient.hpp"

namespace gg {

// What was checked as the launches have it; `scale`: of all weights.
GradientRows gradient_rows(const CheckedActivationGradient& checked, double scale);

// None; the outputs are written. OnCpu for arrays on the CPU, which are only checked.
pybind11::object activation_gradient(const ActivationGradientArguments& arguments);

}  // namespace gg
