#include "forms/check_grouped.hpp"

#include <algorithm>
#include <iterator>
#include <string>

#include "arrays/dtype.hpp"
#include "driver/error.hpp"
#include "forms/check_activation.hpp"
#include "forms/check_grouped_operands.hpp"
#include "forms/check_grouped_scales.hpp"
#include "forms/overlap.hpp"

namespace py = pybind11;

namespace gg {
namespace {

constexpr const char* function = "grouped_mm";

ArgumentName argument(const char* what) { return {function, what}; }

Tensor view(py::handle array, const char* what) { return view_of(array, argument(what)); }

// Unlike view_if_given of checks.hpp this takes arrays without dimensions too.
Tensor view_or_none(py::handle array, const char* what) { return array.is_none() ? Tensor{} : view(array, what); }

void check_bias(const GroupedViews& v, gg_dtype out_dtype) {
  const ArgumentName bias = argument("bias");
  if (v.bias.dtype != out_dtype) {
    reject_type(bias, std::string("has dtype ") + v.bias.dtype_name + "; that of the output, " + full_name(out_dtype) +
                          ", is needed: convert it");
  }
  check_memory(v.bias, bias);
  if (v.bias.rank != 2 || v.bias.shape[0] != v.b.shape[0] || v.bias.shape[1] != v.b.shape[2]) {
    reject(bias, "has shape " + shape(v.bias) + "; " + shape(v.b.shape[0], v.b.shape[2]) +
                     " is needed: a row for each group; expand one that is for all");
  }
  check_device(v.bias, bias, v.a, "mat_a");
}

// `written`: the output or the pre-activation, called `what`.
void check_overlap(const GroupedViews& v, const Tensor& written, const char* what) {
  const auto check = [&](const Tensor& read, const char* name) { check_separate(written, argument(what), read, name); };
  check(v.a, "mat_a");
  check(v.b, "mat_b");
  check(v.offs, "offs");
  check(v.bias, "bias");
  check(v.scale_a, "scale_a");
  check(v.scale_b, "scale_b");
  check(v.index, "a_index");
  check(v.b_index, "b_index");
  check(v.counts, "counts");
  check(v.alpha, "alpha");
  check(v.beta, "beta");
}

void check_index(const GroupedViews& v, const Tensor& seen, const char* what) {
  const ArgumentName index = argument(what);
  check_integers(seen, index, 1);
  check_device(seen, index, v.a, "mat_a");
  if (!is_fp8(v.a.dtype)) return;
  reject(index, std::string("is given, but mat_a has ") + full_name(v.a.dtype) +
                    "; it goes with float16 and bfloat16: pass mat_a[a_index] instead");
}

// A number, or a float32 element on the device, which is seen in `seen`.
float check_factor(const GroupedViews& v, py::handle given, const char* what, float otherwise, Tensor& seen) {
  if (!is_given(given)) return otherwise;
  const ArgumentName named = argument(what);
  if (is_number(given)) return static_cast<float>(number(named, given));
  seen = view(given, what);
  if (seen.dtype != GG_FP32) {
    reject_type(named, std::string("has dtype ") + seen.dtype_name + "; float32 is needed, or a number: convert it");
  }
  if (seen.rank == 0) seen.rank = 1;  // of one element, and no array that is left out
  check_memory(seen, named);
  if (!is_one(seen)) {
    reject(named, "has shape " + shape(seen) + "; 1 element is needed, or a number");
  }
  check_device(seen, named, v.a, "mat_a");
  return otherwise;
}

Factors check_factors(GroupedViews& v, GroupedForm form, const GroupedArguments& given) {
  Factors factors;
  factors.alpha = check_factor(v, given.alpha, "alpha", 1, v.alpha);
  factors.beta = check_factor(v, given.beta, "beta", 0, v.beta);
  factors.alpha_at = v.alpha.data, factors.beta_at = v.beta.data;
  check_goes_with(v.alpha.rank > 0 || factors.alpha != 1, "alpha", form, bit_of(GroupedForm::ragged_k));
  check_goes_with(factors.reads_output(), "beta", form, bit_of(GroupedForm::ragged_k));
  if (factors.reads_output() && given.out.is_none()) {
    reject(argument("beta"), "is given without out, which it is a factor of; pass out, or leave it out");
  }
  return factors;
}

void check_activation(const GroupedViews& v, const Activation& activation, gg_dtype out_dtype) {
  const ArgumentName named = argument("activation");
  const std::string word = std::string("is '") + gg_activation_names[activation.kind] + "', ";
  if (activation.gated() && v.b.shape[2] % 2 != 0) {
    reject(named, word + "which takes two columns of mat_b, gate and up, for one of the output, but mat_b has N=" +
                      std::to_string(v.b.shape[2]) + "; an even N is needed");
  }
  if (out_dtype == GG_FP16 || out_dtype == GG_BF16) return;
  reject(named, word + "and the output would be " + full_name(out_dtype) +
                    "; pass out_dtype float16 or bfloat16, or apply it to the product");
}

void check_preactivation(const GroupedViews& v, py::handle array, int64_t rows, gg_dtype out_dtype) {
  const ArgumentName kept = argument("preactivation");
  Gradients recorded;
  check_output(v.preactivation, kept, array, {rows, v.b.shape[2], out_dtype, "the pre-activation"}, recorded);
  if (!is_empty(v.preactivation) && v.preactivation.shape[1] > 1 && v.preactivation.stride[1] != 1) {
    reject(kept, "has stride " + std::to_string(v.preactivation.stride[1]) +
                     " between columns; the elements of a row must lie one behind the other: pass a row-major array");
  }
  check_device(v.preactivation, kept, v.a, "mat_a");
  check_overlap(v, v.preactivation, "preactivation");
  if (!may_share(v.preactivation, v.out)) return;
  reject(kept, "shares memory with out, and both are written; pass a separate tensor");
}

// Of 16-bit inputs a ragged K alone is written in float32 as well: gradients of weights are summed in it.
gg_dtype dtype_of_output(const CheckedGrouped& product, py::handle requested) {
  const gg_dtype given = product.views.out.rank > 0 ? product.views.out.dtype : GG_ANY_DTYPE;
  const gg_dtype wanted = requested_dtype(requested, function);
  if (product.form == GroupedForm::ragged_k) {
    const gg_dtype first = wanted != GG_ANY_DTYPE ? wanted : given;
    if (first == GG_FP32) return GG_FP32;
    if (product.dtype == GG_E4M3 && first != GG_ANY_DTYPE && first != GG_BF16) {
      throw ValueError(std::string(function) + ": the output would be " + full_name(first) +
                       ", and products of float8_e4m3fn with a ragged K give bfloat16 or float32; convert the result");
    }
  }
  return output_dtype(product.dtype, wanted, given, function);
}

int check_k_alignment(const CheckedGrouped& product, py::handle given) {
  if (!is_given(given)) return 1;
  const ArgumentName named = argument("k_alignment");
  const std::string needed = "1 is needed, or 128 where every group ends at a multiple of 128";
  const Py_ssize_t value = PyNumber_AsSsize_t(given.ptr(), nullptr);  // clipped beyond 64 bits, and so neither
  if (value == -1 && PyErr_Occurred()) {
    PyErr_Clear();
    reject_type(named, "is " + kind_of(given) + "; " + needed);
  }
  if (value != 1 && value != scale_block) reject(named, "is " + std::string(py::str(given)) + "; " + needed);
  check_goes_with(value != 1, "k_alignment", product.form, bit_of(GroupedForm::ragged_k));
  if (value != 1 && !is_fp8(product.dtype)) {
    reject(named, std::string("is 128, but the inputs are ") + full_name(product.dtype) +
                      ", of which groups may end anywhere at no cost: it is for fp8; leave it out");
  }
  return static_cast<int>(value);
}

// The arrays besides mat_a, mat_b and those that are written.
void check_inputs(CheckedGrouped& product, const GroupedArguments& given) {
  GroupedViews& v = product.views;
  if (!given.offs.is_none()) {
    v.offs = view(given.offs, "offs");
    check_extents(v, v.offs, "offs", "end of each group");
  }
  if (is_given(given.counts)) {
    v.counts = view(given.counts, "counts");
    check_extents(v, v.counts, "counts", "number of rows of each group");
  }
  v.out = view_or_none(given.out, "out");
  product.out_dtype = dtype_of_output(product, given.out_dtype);
  if (!given.bias.is_none()) {
    v.bias = view(given.bias, "bias");
    check_bias(v, product.out_dtype);
  }
  v.scale_a = view_or_none(given.scale_a, "scale_a");
  v.scale_b = view_or_none(given.scale_b, "scale_b");
  product.scaling = product.form == GroupedForm::ragged_k ? check_scales_along_k(v) : check_scales(v);
}

void check_indices(GroupedViews& v, const GroupedArguments& given) {
  if (is_given(given.a_index)) {
    v.index = view(given.a_index, "a_index");
    check_index(v, v.index, "a_index");
  }
  if (is_given(given.b_index)) {
    v.b_index = view(given.b_index, "b_index");
    check_index(v, v.b_index, "b_index");
  }
}

void check_outputs(CheckedGrouped& product, const Activation& activation, const GroupedArguments& given) {
  GroupedViews& v = product.views;
  const GroupedSizes& sizes = product.sizes;
  if (!given.out.is_none()) {
    Gradients recorded;
    const int64_t columns = activation.gated() ? sizes.n / 2 : sizes.n;
    const int64_t groups = product.has_output_stack() ? sizes.groups : -1;
    check_output(v.out, argument("out"), given.out, {sizes.m, columns, product.out_dtype, "the product", groups},
                 recorded);
    check_device(v.out, argument("out"), v.a, "mat_a");
    check_overlap(v, v.out, "out");
    product.out = py::reinterpret_borrow<py::object>(given.out);
  }
  if (!is_given(given.preactivation)) return;
  if (activation.kind == GG_ACTIVATION_NONE) {
    reject(argument("preactivation"),
           "is given without an activation, and would be the output again; leave it out, or pass activation");
  }
  v.preactivation = view(given.preactivation, "preactivation");
  check_preactivation(v, given.preactivation, sizes.m, product.out_dtype);
}

void check_no_list(py::handle mat_a) {
  if (PyList_Check(mat_a.ptr()) || PyTuple_Check(mat_a.ptr())) {
    throw TypeError("grouped_mm: mat_a is " + kind_of(mat_a) +
                    "; an array [rows, K] is needed: pass lists of matrices to group_gemm");
  }
}

}  // namespace

CheckedGrouped check_grouped(const GroupedArguments& arguments) {
  check_no_list(arguments.mat_a);
  CheckedGrouped product;
  GroupedViews& v = product.views;
  v.a = view(arguments.mat_a, "mat_a");
  v.b = view(arguments.mat_b, "mat_b");
  product.form = form_of(v);
  check_arguments_of(product.form, arguments);
  check_has_ends(v, product.form, arguments);
  check_dtypes(v, product.form);
  product.dtype = v.a.dtype;
  if (product.form == GroupedForm::ragged_k) check_indices(v, arguments);
  check_operands(v, product.form);
  check_inputs(product, arguments);
  if (product.form != GroupedForm::ragged_k) check_indices(v, arguments);
  product.k_alignment = check_k_alignment(product, arguments.k_alignment);
  const Factors factors = check_factors(v, product.form, arguments);
  product.sizes = sizes_of(v, product.form);
  const Activation activation =
      read_activation(arguments.activation, arguments.gate_up, arguments.swiglu_limit, function);
  if (activation.kind != GG_ACTIVATION_NONE) check_activation(v, activation, product.out_dtype);
  check_outputs(product, activation, arguments);
  product.take(arguments.mat_a, v.a, "mat_a");
  product.problem = make_grouped(product, activation, factors, arguments.batch_invariant);
  return product;
}

namespace {

// `visit(array, name)` of each of these arguments that may have a gradient, until one of them gives true.
template <typename Visit>
bool any_factor(const GroupedArguments& given, const Visit& visit) {
  const auto is_array = [](py::handle factor) { return is_given(factor) && !is_number(factor); };
  return visit(given.scale_a, "scale_a") || visit(given.scale_b, "scale_b") ||
         (is_array(given.alpha) && visit(given.alpha, "alpha")) || (is_array(given.beta) && visit(given.beta, "beta"));
}

template <typename Visit>
bool any_input(const GroupedArguments& given, const Visit& visit) {
  return visit(given.mat_a, "mat_a") || visit(given.mat_b, "mat_b") || visit(given.bias, "bias") ||
         any_factor(given, visit);
}

}  // namespace

void check_gradients(const GroupedArguments& arguments, const char* caller) {
  GradientCheck check(caller);
  any_input(arguments, [&](py::handle array, const char* what) {
    check(array, what);
    return false;
  });
}

FrameworkPart framework_part(const GroupedArguments& given) {
  check_no_list(given.mat_a);
  Gradients look;
  const auto needs = [&](py::handle array, const char* what) { return look.needs_framework(array, what); };
  return named_by(function, [&] {
    FrameworkPart part{false, needs(given.mat_a, "mat_a"), needs(given.mat_b, "mat_b"), needs(given.bias, "bias")};
    part.needed = part.mat_a || part.mat_b || part.bias || any_factor(given, needs);
    return part;
  });
}

bool any_stands_for_others(const GroupedArguments& arguments) {
  return any_input(arguments, [](py::handle array, const char* what) {
    return !array.is_none() && stands_for_others(array, {function, what});
  });
}

bool may_have_gradients(const GroupedArguments& arguments) {
  const auto is = [](py::handle factor, double neutral) {
    return !is_given(factor) || (PyFloat_Check(factor.ptr()) && PyFloat_AS_DOUBLE(factor.ptr()) == neutral);
  };
  const py::handle without[] = {arguments.out,        arguments.scale_a,       arguments.scale_b, arguments.a_index,
                                arguments.activation, arguments.preactivation, arguments.b_index, arguments.counts};
  const bool any = std::any_of(std::begin(without), std::end(without), [](py::handle one) { return is_given(one); });
  return !any && is(arguments.alpha, 1) && is(arguments.beta, 0);
}

bool has_gradients(const CheckedGrouped& product) {
  return product.dtype == product.out_dtype && (product.dtype == GG_FP16 || product.dtype == GG_BF16);
}

}  // namespace gg
