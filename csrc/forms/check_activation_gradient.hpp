// What activation_gradient is given: checked, and free of any framework.
#pragma once

#include <pybind11/pybind11.h>

#include "arrays/tensor.hpp"
#include "forms/checks.hpp"
#include "forms/grouped_problem.hpp"

namespace gg {

// What the caller passed; None where it is left out.
struct ActivationGradientArguments {
  pybind11::handle z, dh, weights, slot, ends, activation, gate_up, swiglu_limit, dz, h, dweights;
  double scale;
};

struct CheckedActivationGradient : CheckedCall {
  // No rank where one is left out.
  Tensor z{}, dh{}, weights{}, slot{}, ends{}, dz{}, h{}, dweights{};
  Activation activation;
  int64_t rows, columns;  // of dh
  int64_t entries;        // of weights and dweights
};

// Throws TypeError or ValueError that names the argument. `product`: stands for dh where that is yet to be computed.
CheckedActivationGradient check_activation_gradient(const ActivationGradientArguments& arguments,
                                                    const Tensor* product = nullptr);

}  // namespace gg
