#include "forms/check_grouped.hpp"

#include <cstring>
#include <string>

#include "arrays/dtype.hpp"
#include "driver/error.hpp"
#include "forms/check_activation.hpp"
#include "forms/overlap.hpp"

namespace py = pybind11;

namespace gg {
namespace {

constexpr const char* function = "grouped_mm";

ArgumentName argument(const char* what) { return {function, what}; }

Tensor view(py::handle array, const char* what) {
  return named_by(function, [&] { return framework_of(array, what, -1).view(array, what, -1); });
}

Tensor view_if_given(py::handle array, const char* what) { return array.is_none() ? Tensor{} : view(array, what); }

constexpr GroupedForms ragged_m = bit_of(GroupedForm::ragged_m), ragged_n = bit_of(GroupedForm::ragged_n),
                       ragged_k = bit_of(GroupedForm::ragged_k), stack = bit_of(GroupedForm::stack);

bool is_given(py::handle argument) { return argument && !argument.is_none(); }

GroupedForm form_of(const GroupedViews& v) {
  const bool known = (v.a.rank == 2 || v.a.rank == 3) && (v.b.rank == 2 || v.b.rank == 3);
  if (!known) {
    throw ValueError("grouped_mm: mat_a has shape " + shape(v.a) + " and mat_b has shape " + shape(v.b) +
                     "; mat_a [rows, K] and mat_b [E, K, N] are needed, or [E, M, K] and [K, columns], or [M, K] and "
                     "[K, N], each with offs [E], or [E, M, K] and [E, K, N]. Lists of matrices go to group_gemm");
  }
  if (v.b.rank == 3) return v.a.rank == 2 ? GroupedForm::ragged_m : GroupedForm::stack;
  return v.a.rank == 3 ? GroupedForm::ragged_n : GroupedForm::ragged_k;
}

void check_goes_with(bool given, const char* what, GroupedForm form, GroupedForms forms) {
  if (!given || forms & bit_of(form)) return;
  reject(argument(what),
         "goes with " + words_of(forms) + ", and this product is one of " + words_of(form) + "; leave it out");
}

// Which arguments mean something to which form.
void check_arguments_of(GroupedForm form, const GroupedArguments& given) {
  const auto check = [&](py::handle array, const char* what, GroupedForms forms) {
    check_goes_with(is_given(array), what, form, forms);
  };
  check(given.offs, "offs", ragged_m | ragged_n | ragged_k);
  check(given.bias, "bias", ragged_m | stack);
  check(given.a_index, "a_index", ragged_m | ragged_k);
  check(given.b_index, "b_index", ragged_k);
  check(given.activation, "activation", ragged_m | stack);
  check(given.preactivation, "preactivation", ragged_m);
  check(given.counts, "counts", stack);
  check_goes_with(given.batch_invariant, "batch_invariant", form, ragged_m | ragged_n | stack);
}

void check_has_ends(const GroupedViews& v, GroupedForm form, const GroupedArguments& given) {
  if (form == GroupedForm::stack || !given.offs.is_none()) return;
  const char* what = form == GroupedForm::ragged_m   ? "the row of mat_a"
                     : form == GroupedForm::ragged_n ? "the column of mat_b"
                                                     : "the column of mat_a, and row of mat_b,";
  const std::string groups = form == GroupedForm::ragged_k ? "E" : std::to_string((v.b.rank == 3 ? v.b : v.a).shape[0]);
  throw ValueError("grouped_mm: offs is missing; pass int32 [" + groups + "], " + what +
                   " at which each group ends. Matrices without groups go to group_gemm, as lists");
}

// Kernels count groups in 32 bits, by blocks, and the rows past the last one are a group too.
constexpr int64_t most_groups = int64_t{1} << 30;

void check_group_count(int64_t groups, const char* what, const char* things) {
  if (groups <= most_groups) return;
  reject(argument(what), "has E=" + std::to_string(groups) + " " + things + ", one call takes up to " +
                             std::to_string(most_groups) + "; split the product");
}

void check_dtypes(const GroupedViews& v, GroupedForm form) {
  check_operand(v.a, argument("mat_a"));
  check_operand(v.b, argument("mat_b"));
  if (v.b.dtype != v.a.dtype) {
    reject_type(argument("mat_b"), std::string("has dtype ") + v.b.dtype_name + " but mat_a has " + v.a.dtype_name +
                                       "; both take one dtype, convert one of them");
  }
  if (v.a.dtype == GG_E4M3 && form != GroupedForm::ragged_m) {
    reject_type(argument("mat_a"), std::string("has dtype float8_e4m3fn, and float8_e4m3fn inputs go with ") +
                                       words_of(GroupedForm::ragged_m) + "; convert both to bfloat16");
  }
}

// K of mat_a and of mat_b: of arrays, or by an index.
void check_depths(const GroupedViews& v, GroupedForm form) {
  const bool by_index = form == GroupedForm::ragged_k, of_each = v.b.rank == 3;
  const Tensor no_index{};
  const Tensor &index_a = by_index ? v.index : no_index, &index_b = v.b_index;
  const int64_t of_a = index_a.rank > 0 ? index_a.shape[0] : v.a.shape[v.a.rank - 1];
  const int64_t of_b = index_b.rank > 0 ? index_b.shape[0] : v.b.shape[v.b.rank - 2];
  if (of_a == of_b) return;
  const std::string a = index_a.rank > 0 ? "a_index has " + std::to_string(of_a) + " elements"
                        : v.a.rank == 3  ? "mat_a has K=" + std::to_string(of_a) + " columns in each matrix"
                                         : "mat_a has K=" + std::to_string(of_a) + " columns";
  if (index_b.rank > 0) {
    reject(argument("b_index"), "has " + std::to_string(of_b) + " elements but " + a + "; they need to be equal");
  }
  const bool is_turned = of_each && of_a == v.b.shape[2];
  reject(argument("mat_b"), "has K=" + std::to_string(of_b) + " rows" + (of_each ? " in each matrix" : "") + " but " +
                                a + "; they need to be equal" +
                                (is_turned ? ". A stack of [N, K] goes in as mat_b.mT" : ""));
}

void check_operands(const GroupedViews& v, GroupedForm form) {
  check_device(v.b, argument("mat_b"), v.a, "mat_a");
  check_depths(v, form);
  if (v.b.rank == 3) check_group_count(v.b.shape[0], "mat_b", "matrices");
  if (v.a.rank == 3) check_group_count(v.a.shape[0], "mat_a", "matrices");
  if (form != GroupedForm::stack || v.a.shape[0] == v.b.shape[0]) return;
  reject(argument("mat_b"), "has E=" + std::to_string(v.b.shape[0]) + " matrices but mat_a has E=" +
                                std::to_string(v.a.shape[0]) + "; they need to be equal");
}

// int32 [E] on the device: ends or counts.
void check_extents(const GroupedViews& v, const Tensor& extents, const char* what, const char* of_each) {
  const ArgumentName named = argument(what);
  if (std::strcmp(extents.dtype_name, "int32") != 0) {
    reject_type(named, std::string("has dtype ") + extents.dtype_name + ", int32 is needed; convert it");
  }
  const bool of_b = v.b.rank == 3, has_stack = of_b || v.a.rank == 3;
  const int64_t groups = has_stack ? (of_b ? v.b : v.a).shape[0] : extents.shape[0];
  if (extents.rank != 1 || extents.shape[0] != groups) {
    const std::string count = has_stack ? std::to_string(groups) : "E";
    const std::string stacks =
        has_stack ? std::string(of_b ? " but mat_b has " : " but mat_a has ") + count + " matrices" : "";
    reject(named, "has shape " + shape(extents) + stacks + "; the " + of_each + " is needed, [" + count + "]");
  }
  if (extents.shape[0] > 1 && extents.stride[0] != 1) {
    reject(named,
           "has stride " + std::to_string(extents.stride[0]) + ", its elements must lie one behind the other; copy it");
  }
  check_memory(extents, named);
  check_group_count(extents.shape[0], what, "elements");
  check_device(extents, named, v.a, "mat_a");
}

void check_bias(const GroupedViews& v, gg_dtype out_dtype) {
  const ArgumentName bias = argument("bias");
  if (v.bias.dtype != out_dtype) {
    reject_type(bias, std::string("has dtype ") + v.bias.dtype_name + ", that of the output, " + full_name(out_dtype) +
                          ", is needed; convert it");
  }
  check_memory(v.bias, bias);
  if (v.bias.rank != 2 || v.bias.shape[0] != v.b.shape[0] || v.bias.shape[1] != v.b.shape[2]) {
    reject(bias, "has shape " + shape(v.bias) + ", " + shape(v.b.shape[0], v.b.shape[2]) +
                     " is needed: a row for each group; expand one that is for all");
  }
  check_device(v.bias, bias, v.a, "mat_a");
}

void check_scales(const GroupedViews& v, const GroupedArguments& arguments) {
  const auto check = [&](py::handle array, const Tensor& scale, const char* what, int64_t count) {
    if (array.is_none()) return;
    check_scale(scale, argument(what), v.a.dtype, count);
    check_device(scale, argument(what), v.a, "mat_a");
  };
  check(arguments.scale_a, v.scale_a, "scale_a", 1);
  check(arguments.scale_b, v.scale_b, "scale_b", v.b.shape[0]);
}

bool shares(const Tensor& written, const Tensor& other) {
  if (other.data == 0 || other.rank == 0 || is_empty(other)) return false;
  const Extent x = extent(written), y = extent(other);
  return y.high > x.low && x.high > y.low && !side_by_side(written, other);
}

// `written`: the output or the pre-activation, called `what`.
void check_overlap(const GroupedViews& v, const Tensor& written, const char* what) {
  if (is_empty(written)) return;
  const auto check = [&](const Tensor& read, const char* other) {
    if (!shares(written, read)) return;
    reject(argument(what), std::string("shares memory with ") + other +
                               ", which would be read while it is being written; pass a separate tensor");
  };
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
  if (v.a.dtype != GG_E4M3) return;
  reject(index,
         "is given, but mat_a has float8_e4m3fn; it goes with float16 and bfloat16: pass mat_a[a_index] instead");
}

// A number, or a float32 element on the device, which is seen in `seen`.
float check_factor(const GroupedViews& v, py::handle given, const char* what, float otherwise, Tensor& seen) {
  if (!is_given(given)) return otherwise;
  if (PyFloat_Check(given.ptr()) || PyLong_Check(given.ptr())) {
    const double value = PyFloat_AsDouble(given.ptr());
    if (value == -1 && PyErr_Occurred()) throw py::error_already_set();
    return static_cast<float>(value);
  }
  const ArgumentName named = argument(what);
  seen = view(given, what);
  if (seen.dtype != GG_FP32) {
    reject_type(named, std::string("has dtype ") + seen.dtype_name + ", float32 is needed, or a number; convert it");
  }
  if (seen.rank == 0) seen.rank = 1;  // of one element, and no array that is left out
  check_memory(seen, named);
  if (seen.rank > 3 || seen.shape[0] != 1 || seen.shape[1] != 1 || seen.shape[2] != 1) {
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
  check_goes_with(v.alpha.rank > 0 || factors.alpha != 1, "alpha", form, ragged_k);
  check_goes_with(factors.reads_output(), "beta", form, ragged_k);
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
  if (v.preactivation.shape[1] > 1 && v.preactivation.stride[1] != 1) {
    reject(kept, "has stride " + std::to_string(v.preactivation.stride[1]) +
                     " between columns, the elements of a row must lie one behind the other; pass a row-major array");
  }
  check_device(v.preactivation, kept, v.a, "mat_a");
  check_overlap(v, v.preactivation, "preactivation");
  if (v.out.rank == 0 || is_empty(v.preactivation) || is_empty(v.out) || !shares(v.preactivation, v.out)) return;
  reject(kept, "shares memory with out, and both are written; pass a separate tensor");
}

GroupedSizes sizes_of(const GroupedViews& v, GroupedForm form) {
  const int64_t *a = v.a.shape, *b = v.b.shape;
  const int64_t indexed = v.index.rank > 0 ? v.index.shape[0] : -1;
  switch (form) {
    case GroupedForm::ragged_m:
      return {b[0], indexed >= 0 ? indexed : a[0], b[2], a[1]};
    case GroupedForm::ragged_n:
      return {a[0], a[1], b[1], a[2]};
    case GroupedForm::ragged_k:
      return {v.offs.shape[0], a[0], b[1], indexed >= 0 ? indexed : a[1]};
    default:
      return {a[0], a[1], b[2], a[2]};
  }
}

// Of 16-bit inputs a ragged K alone is written in float32 as well: gradients of weights are summed in it.
gg_dtype dtype_of_output(const CheckedGrouped& product, py::handle requested) {
  const gg_dtype given = product.views.out.rank > 0 ? product.views.out.dtype : GG_ANY_DTYPE;
  const gg_dtype wanted = requested_dtype(requested, function);
  if (product.form == GroupedForm::ragged_k) {
    const gg_dtype first = wanted != GG_ANY_DTYPE ? wanted : given;
    if (first == GG_FP32) return GG_FP32;
  }
  return output_dtype(product.dtype, wanted, given, function);
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
  v.out = view_if_given(given.out, "out");
  product.out_dtype = dtype_of_output(product, given.out_dtype);
  if (!given.bias.is_none()) {
    v.bias = view(given.bias, "bias");
    check_bias(v, product.out_dtype);
  }
  v.scale_a = view_if_given(given.scale_a, "scale_a");
  v.scale_b = view_if_given(given.scale_b, "scale_b");
  check_scales(v, given);
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
    throw TypeError(std::string("grouped_mm: mat_a is a ") + Py_TYPE(mat_a.ptr())->tp_name +
                    ", an array [rows, K] is needed; pass lists of matrices to group_gemm");
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
  const Factors factors = check_factors(v, product.form, arguments);
  product.sizes = sizes_of(v, product.form);
  const Activation activation = read_activation(arguments.activation, arguments.gate_up, function);
  if (activation.kind != GG_ACTIVATION_NONE) check_activation(v, activation, product.out_dtype);
  check_outputs(product, activation, arguments);
  product.framework = &framework_of(arguments.mat_a, "mat_a", -1);
  product.like = py::reinterpret_borrow<py::object>(arguments.mat_a);
  product.device_type = v.a.device_type, product.device = v.a.device;
  product.problem = make_grouped(product, activation, factors, arguments.batch_invariant);
  return product;
}

namespace {

bool is_number(py::handle factor) {
  return !is_given(factor) || PyFloat_Check(factor.ptr()) || PyLong_Check(factor.ptr());
}

// `visit(array, name)` of each argument that may have a gradient, until one of them gives true.
template <typename Visit>
bool any_input(const GroupedArguments& given, const Visit& visit) {
  return visit(given.mat_a, "mat_a") || visit(given.mat_b, "mat_b") || visit(given.bias, "bias") ||
         visit(given.scale_a, "scale_a") || visit(given.scale_b, "scale_b") ||
         (!is_number(given.alpha) && visit(given.alpha, "alpha")) ||
         (!is_number(given.beta) && visit(given.beta, "beta"));
}

}  // namespace

void check_gradients(const GroupedArguments& arguments) {
  GradientCheck check(function);
  any_input(arguments, [&](py::handle array, const char* what) {
    check(array, what);
    return false;
  });
}

bool needs_framework(const GroupedArguments& arguments) {
  check_no_list(arguments.mat_a);
  Gradients look;
  const auto needs = [&](py::handle array, const char* what) { return look.needs_framework(array, what); };
  return named_by(function, [&] { return any_input(arguments, needs); });
}

bool any_stands_for_others(const GroupedArguments& arguments) {
  return any_input(arguments, [](py::handle array, const char* what) {
    return !array.is_none() && stands_for_others(array, {function, what});
  });
}

}  // namespace gg
