// Products of lists of matrices: check, nothing to do, select, launch, in that order.
#pragma once

#include <pybind11/pybind11.h>

#include "forms/check_list.hpp"

namespace gg {

// C[i] = A[i] @ B[i] for lists on a CUDA device: a list of the outputs, new ones or those of `out`. OnCpu for lists on
// the CPU, which are only checked.
pybind11::object group_gemm(const ListArguments& arguments);

}  // namespace gg
