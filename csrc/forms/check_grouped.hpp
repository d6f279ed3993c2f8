// Arguments of grouped_mm in, a grouped product of any form out: every rule that the caller's arrays must keep.
#pragma once

#include <pybind11/pybind11.h>

#include "forms/checks.hpp"
#include "forms/grouped_form.hpp"
#include "forms/grouped_problem.hpp"

namespace gg {

// What the caller passed; None where it is left out, and those from a_index on may be null as well.
struct GroupedArguments {
  pybind11::handle mat_a, mat_b, offs, bias, out_dtype, out, scale_a, scale_b;
  bool batch_invariant;
  pybind11::handle a_index{}, activation{}, gate_up{}, swiglu_limit{}, preactivation{};
  pybind11::handle b_index{}, counts{}, alpha{}, beta{}, k_alignment{};
};

// The views of the caller's arrays; no rank where one is left out, or is a number.
struct GroupedViews {
  Tensor a{}, b{}, offs{}, bias{}, out{}, scale_a{}, scale_b{}, index{}, preactivation{};
  Tensor b_index{}, counts{}, alpha{}, beta{};
};

struct CheckedGrouped : CheckedCall {
  GroupedForm form = GroupedForm::ragged_m;
  gg_scaling scaling = GG_SCALING_TENSOR;  // what scales are for, if there are any
  int k_alignment = 1;                     // of a ragged K: ends count as the next multiple of it
  GroupedSizes sizes{};
  GroupedProblem problem{};  // without `out`, C has no address and is row-major
  GroupedViews views;
  pybind11::object out;  // null where it was not given

  // The output that the caller gets: [rows, columns], or a stack of them.
  bool has_output_stack() const { return form == GroupedForm::ragged_k || form == GroupedForm::stack; }
  int64_t output_columns() const { return form == GroupedForm::ragged_n ? sizes.n : problem.output_columns(); }
  void set_output(const Tensor& view);
};

// All checks, those of `out` too where it is given. Throws TypeError or ValueError that names the array.
CheckedGrouped check_grouped(const GroupedArguments& arguments);

// Throws RuntimeError where an input requires grad: nothing here records one.
void check_gradients(const GroupedArguments& arguments, const char* caller);

// Whether the arrays' framework has to take part: it records gradients of an input, or an input stands for others.
// Where none does that, `mat_a`, `mat_b` and `bias` are those whose gradients it records.
struct FrameworkPart {
  bool needed, mat_a, mat_b, bias;
};
FrameworkPart framework_part(const GroupedArguments& given);
bool any_stands_for_others(const GroupedArguments& arguments);

// Where it has: whether the call has gradients, as far as its arguments say, and its dtypes.
bool may_have_gradients(const GroupedArguments& arguments);
bool has_gradients(const CheckedGrouped& product);

// The product of arrays that were checked: make_grouped.cpp. `factors` are alpha and beta.
GroupedProblem make_grouped(const CheckedGrouped& product, const Activation& activation, const Factors& factors,
                            bool batch_invariant);

}  // namespace gg
