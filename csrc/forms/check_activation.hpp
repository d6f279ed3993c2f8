// The words for what becomes of the sums of a product.
#pragma once

#include <pybind11/pybind11.h>

#include "forms/grouped_problem.hpp"

namespace gg {

// `activation` and `gate_up` as a caller of `function` passed them; null or None where they are left out. Throws
// TypeError for what is no string and ValueError for an unknown word. Addresses are left out.
Activation read_activation(pybind11::handle activation, pybind11::handle gate_up, const char* function);

}  // namespace gg
