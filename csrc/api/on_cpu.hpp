// What an entry point gives back for arrays on the CPU: it has checked them, and the Python face multiplies them by
// their own framework (gg_runtime/reference.py).
#pragma once

#include <pybind11/pybind11.h>

#include "abi/artifact.h"

namespace gg {

struct OnCpu {
  gg_dtype out_dtype;  // that the outputs are to have
};

inline pybind11::object on_cpu(gg_dtype out_dtype) { return pybind11::cast(OnCpu{out_dtype}); }

}  // namespace gg
