// gg_runtime._C's functions for layers of experts.
#pragma once

#include <pybind11/pybind11.h>

namespace gg {

void bind_experts(pybind11::module_& m);

}  // namespace gg
