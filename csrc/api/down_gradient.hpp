// The gradient of a down projection and of the activation before it: check, nothing to do, select, launch, in that
// order.
#pragma once

#include <pybind11/pybind11.h>

#include "forms/check_activation_gradient.hpp"
#include "forms/check_grouped.hpp"

namespace gg {

// None; the outputs are written. OnCpu for arrays on the CPU, which are only checked. `product_arguments` are
// of the product that gives dh, which `row_arguments` do not have. `fused`: True, False, or None for what is predicted
// to be faster.
pybind11::object down_gradient(const GroupedArguments& product_arguments,
                               const ActivationGradientArguments& row_arguments, pybind11::handle fused);

}  // namespace gg
