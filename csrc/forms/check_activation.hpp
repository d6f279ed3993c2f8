// The words for what becomes of the sums of a product.
#pragma once

#include <pybind11/pybind11.h>

#include "forms/activation.hpp"

namespace gg {

// `activation`, `gate_up` and `swiglu_limit` as a caller of `function` passed them; null or None where they are left
// out. Throws TypeError for what is no string, or no number, and ValueError for an unknown word and a limit that means
// nothing. Addresses are left out.
Activation read_activation(pybind11::handle activation, pybind11::handle gate_up, pybind11::handle swiglu_limit,
                           const char* function);

}  // namespace gg
