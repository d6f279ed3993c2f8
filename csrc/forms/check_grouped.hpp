// Arguments of grouped_mm in, a ragged product out: every rule that the caller's arrays must keep.
#pragma once

#include <pybind11/pybind11.h>

#include "arrays/tensor.hpp"
#include "forms/grouped_problem.hpp"

namespace gg {

// What the caller passed; None where it is left out. `variant` names an embedded artifact to take.
struct GroupedArguments {
  pybind11::handle mat_a, mat_b, offs, bias, out_dtype, out, scale_a, scale_b, variant;
  bool batch_invariant;
};

// The product, and where it is to be computed.
struct CheckedGrouped {
  GroupedProblem problem;      // without `out`, C has no address and is row-major
  const Framework* framework;  // that of mat_a
  DeviceType device_type;
  int device;
};

// All checks, those of `out` too where it is given. Throws TypeError or ValueError that names the array.
CheckedGrouped check_grouped(const GroupedArguments& arguments);

// Throws RuntimeError where an input requires grad: nothing here records one.
void check_gradients(const GroupedArguments& arguments);

}  // namespace gg
