// Arguments in, a list of groups out: every rule that the caller's arrays must keep, in one place and one order.
#pragma once

#include <pybind11/pybind11.h>

#include <vector>

#include "forms/checks.hpp"
#include "forms/list_problem.hpp"

namespace gg {

// What the caller passed to group_gemm, Plan or explain; None where it is left out.
// scale_a and scale_b: an array each, or a list or tuple of as many as there are products.
struct ListArguments {
  pybind11::handle group_a, group_b, out, out_dtype, scale_a, scale_b;
};

// The caller's lists.
struct CheckedList : CheckedCall {
  pybind11::tuple arrays_a, arrays_b, arrays_out;  // what the caller passed, kept against changes to its lists
  pybind11::object scale_array_a, scale_array_b;
  std::vector<Tensor> a, b, c;
  Tensor scale_a{}, scale_b{};             // without data: 1
  std::vector<Tensor> scales_a, scales_b;  // of each product, where they are by row and column, or by block
  gg_scaling scaling = GG_SCALING_TENSOR;
  bool has_outputs = false;  // `out` was given; else arrays_out and c are empty

  size_t size() const { return a.size(); }
};

// Lengths, ranks, dtypes, devices, inner sizes and scales; where `out` is given, shape, dtype and device of each
// output, and that none shares memory with itself, another output or an input. Throws TypeError or ValueError that
// names the array.
CheckedList check_list(const ListArguments& arguments);

// The caller's lists, of which nothing is known but that they are lists; then the rest of check_list.
CheckedList take_lists(const ListArguments& arguments);
void check_taken(const ListArguments& arguments, CheckedList& list);

// Whether the arrays' framework has to take part: it records gradients of an input, or an input stands for others.
bool needs_framework(const ListArguments& arguments, const CheckedList& list);
bool any_stands_for_others(const ListArguments& arguments, const CheckedList& list);

// Throws RuntimeError where an input requires grad: nothing here records one.
void check_gradients(const CheckedList& list, const char* caller);

// One group for each index, addresses and strides filled in; and all that is to be multiplied.
std::vector<Group> make_groups(const CheckedList& list);
ListProblem problem_of(const CheckedList& list);

}  // namespace gg
