// Arguments of grouped_mm in, a ragged product out: every rule that the caller's arrays must keep.
#pragma once

#include <pybind11/pybind11.h>

#include "forms/checks.hpp"
#include "forms/grouped_problem.hpp"

namespace gg {

// What the caller passed; None where it is left out, and the last four may be null as well.
struct GroupedArguments {
  pybind11::handle mat_a, mat_b, offs, bias, out_dtype, out, scale_a, scale_b;
  bool batch_invariant;
  pybind11::handle a_index{}, activation{}, gate_up{}, preactivation{};
};

// The views of the caller's arrays; no rank where one is left out.
struct GroupedViews {
  Tensor a{}, b{}, offs{}, bias{}, out{}, scale_a{}, scale_b{}, index{}, preactivation{};
};

struct CheckedGrouped : CheckedCall {
  GroupedProblem problem{};  // without `out`, C has no address and is row-major
  GroupedViews views;
  pybind11::object out;  // null where it was not given
};

// All checks, those of `out` too where it is given. Throws TypeError or ValueError that names the array.
CheckedGrouped check_grouped(const GroupedArguments& arguments);

// Throws RuntimeError where an input requires grad: nothing here records one.
void check_gradients(const GroupedArguments& arguments);

// Whether the arrays' framework has to take part: it records gradients of an input, or an input stands for others.
bool needs_framework(const GroupedArguments& arguments);

}  // namespace gg
