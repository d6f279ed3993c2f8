// What an entry point gives back for arrays on the CPU: it has checked them, and the Python face multiplies them by
// their own framework (gg_runtime/reference).
#pragma once

#include <pybind11/pybind11.h>

#include "abi/artifact.h"

namespace gg {

struct OnCpu {
  gg_dtype out_dtype;  // that the outputs are to have
};

inline pybind11::object on_cpu(gg_dtype out_dtype) { return pybind11::cast(OnCpu{out_dtype}); }

// What an entry point gives back, unchecked, where the arrays' framework has to take part (gg_runtime/by_torch.py): it
// records gradients of an array, or an array stands for others.
inline pybind11::object recorded() { return pybind11::reinterpret_borrow<pybind11::object>(Py_NotImplemented); }
inline pybind11::object stand_in() { return pybind11::reinterpret_borrow<pybind11::object>(Py_Ellipsis); }

}  // namespace gg
