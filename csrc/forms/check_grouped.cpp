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

void check_forms(const GroupedViews& v, const GroupedArguments& arguments) {
  if (v.a.rank != 2 || v.b.rank != 3) {
    throw ValueError("grouped_mm: mat_a has shape " + shape(v.a) + " and mat_b has shape " + shape(v.b) +
                     "; mat_a [rows, K], mat_b [E, K, N] and offs [E] are needed. For other forms pass lists of "
                     "matrices to group_gemm");
  }
  if (arguments.offs.is_none()) {
    throw ValueError("grouped_mm: offs is missing; pass int32 [" + std::to_string(v.b.shape[0]) +
                     "], the row of mat_a at which each group ends. Matrices without groups of rows go to "
                     "group_gemm, as lists");
  }
}

// Kernels count groups in 32 bits, by blocks, and the rows past the last one are a group too.
constexpr int64_t most_groups = int64_t{1} << 30;

void check_factors(const GroupedViews& v) {
  check_operand(v.a, argument("mat_a"));
  check_operand(v.b, argument("mat_b"));
  if (v.b.dtype != v.a.dtype) {
    reject_type(argument("mat_b"), std::string("has dtype ") + v.b.dtype_name + " but mat_a has " + v.a.dtype_name +
                                       "; both take one dtype, convert one of them");
  }
  check_device(v.b, argument("mat_b"), v.a, "mat_a");
  if (v.a.shape[1] != v.b.shape[1]) {
    reject(argument("mat_b"), "has K=" + std::to_string(v.b.shape[1]) + " rows in each matrix but mat_a has K=" +
                                  std::to_string(v.a.shape[1]) + " columns; they need to be equal" +
                                  (v.a.shape[1] == v.b.shape[2] ? ". A stack of [N, K] goes in as mat_b.mT" : ""));
  }
  if (v.b.shape[0] > most_groups) {
    reject(argument("mat_b"), "has E=" + std::to_string(v.b.shape[0]) + " matrices, one call takes up to " +
                                  std::to_string(most_groups) + "; split the product");
  }
}

void check_offs(const GroupedViews& v) {
  const ArgumentName offs = argument("offs");
  if (std::strcmp(v.offs.dtype_name, "int32") != 0) {
    reject_type(offs, std::string("has dtype ") + v.offs.dtype_name + ", int32 is needed; convert it");
  }
  if (v.offs.rank != 1 || v.offs.shape[0] != v.b.shape[0]) {
    reject(offs, "has shape " + shape(v.offs) + " but mat_b has " + std::to_string(v.b.shape[0]) +
                     " matrices; the end of each group's rows is needed, [" + std::to_string(v.b.shape[0]) + "]");
  }
  if (v.offs.shape[0] > 1 && v.offs.stride[0] != 1) {
    reject(offs,
           "has stride " + std::to_string(v.offs.stride[0]) + ", its elements must lie one behind the other; copy it");
  }
  check_memory(v.offs, offs);
  check_device(v.offs, offs, v.a, "mat_a");
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
}

bool is_given(py::handle argument) { return argument && !argument.is_none(); }

void check_index(const GroupedViews& v) {
  const ArgumentName index = argument("a_index");
  check_integers(v.index, index, 1);
  check_device(v.index, index, v.a, "mat_a");
  if (v.a.dtype != GG_E4M3) return;
  reject(index,
         "is given, but mat_a has float8_e4m3fn; it goes with float16 and bfloat16: pass mat_a[a_index] instead");
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

// Rows of the product.
int64_t rows_of(const GroupedViews& v) { return v.index.rank > 0 ? v.index.shape[0] : v.a.shape[0]; }

GroupedProblem make_grouped(const GroupedViews& v, const Activation& activation, gg_dtype out_dtype,
                            bool batch_invariant) {
  GroupedProblem p{};
  p.extents = GG_M_ENDS;
  p.dtype = v.a.dtype, p.out_dtype = out_dtype;
  p.m = rows_of(v), p.k = v.a.shape[1], p.groups = v.b.shape[0], p.n = v.b.shape[2];
  p.a = v.a.data, p.a_row = v.a.stride[0], p.a_col = v.a.stride[1];
  p.b = v.b.data, p.b_group = v.b.stride[0], p.b_row = v.b.stride[1], p.b_col = v.b.stride[2];
  p.activation = activation;
  p.activation.kept = v.preactivation.data, p.activation.kept_row = v.preactivation.stride[0];
  if (v.index.rank > 0) p.index = {v.index.data, static_cast<int>(bytes_of(v.index)), v.a.shape[0]};
  p.c_row = p.output_columns(), p.c_col = 1;
  p.ragged = v.offs.data;
  p.bias = v.bias.data, p.bias_row = v.bias.stride[0], p.bias_col = v.bias.stride[1];
  p.scale_a = v.scale_a.data, p.scale_b = v.scale_b.data;
  p.scale_b_step = v.scale_b.shape[0] > 1 ? v.scale_b.stride[0] : 0;
  p.batch_invariant = batch_invariant;
  if (v.out.rank > 0) p.set_output(v.out);
  else p.complete();
  return p;
}

}  // namespace

CheckedGrouped check_grouped(const GroupedArguments& arguments) {
  if (PyList_Check(arguments.mat_a.ptr()) || PyTuple_Check(arguments.mat_a.ptr())) {
    throw TypeError(std::string("grouped_mm: mat_a is a ") + Py_TYPE(arguments.mat_a.ptr())->tp_name +
                    ", an array [rows, K] is needed; pass lists of matrices to group_gemm");
  }
  CheckedGrouped product;
  GroupedViews& v = product.views;
  v.a = view(arguments.mat_a, "mat_a");
  v.b = view(arguments.mat_b, "mat_b");
  check_forms(v, arguments);
  check_factors(v);
  v.offs = view(arguments.offs, "offs");
  check_offs(v);
  v.out = view_if_given(arguments.out, "out");
  const gg_dtype given = v.out.rank > 0 ? v.out.dtype : GG_ANY_DTYPE;
  const gg_dtype out_dtype = output_dtype(v.a.dtype, requested_dtype(arguments.out_dtype, function), given, function);
  if (!arguments.bias.is_none()) {
    v.bias = view(arguments.bias, "bias");
    check_bias(v, out_dtype);
  }
  v.scale_a = view_if_given(arguments.scale_a, "scale_a");
  v.scale_b = view_if_given(arguments.scale_b, "scale_b");
  check_scales(v, arguments);
  if (is_given(arguments.a_index)) {
    v.index = view(arguments.a_index, "a_index");
    check_index(v);
  }
  const Activation activation = read_activation(arguments.activation, arguments.gate_up, function);
  if (activation.kind != GG_ACTIVATION_NONE) check_activation(v, activation, out_dtype);
  if (!arguments.out.is_none()) {
    Gradients recorded;
    const int64_t columns = activation.gated() ? v.b.shape[2] / 2 : v.b.shape[2];
    check_output(v.out, argument("out"), arguments.out, {rows_of(v), columns, out_dtype, "the product"}, recorded);
    check_device(v.out, argument("out"), v.a, "mat_a");
    check_overlap(v, v.out, "out");
  }
  if (is_given(arguments.preactivation)) {
    if (activation.kind == GG_ACTIVATION_NONE) {
      reject(argument("preactivation"),
             "is given without an activation, and would be the output again; leave it out, or pass activation");
    }
    v.preactivation = view(arguments.preactivation, "preactivation");
    check_preactivation(v, arguments.preactivation, rows_of(v), out_dtype);
  }
  if (!arguments.out.is_none()) product.out = py::reinterpret_borrow<py::object>(arguments.out);
  product.framework = &framework_of(arguments.mat_a, "mat_a", -1);
  product.like = py::reinterpret_borrow<py::object>(arguments.mat_a);
  product.device_type = v.a.device_type, product.device = v.a.device;
  product.dtype = v.a.dtype, product.out_dtype = out_dtype;
  product.problem = make_grouped(v, activation, out_dtype, arguments.batch_invariant);
  return product;
}

void check_gradients(const GroupedArguments& arguments) {
  GradientCheck check(function);
  check(arguments.mat_a, "mat_a");
  check(arguments.mat_b, "mat_b");
  check(arguments.bias, "bias");
  check(arguments.scale_a, "scale_a");
  check(arguments.scale_b, "scale_b");
}

bool needs_framework(const GroupedArguments& arguments) {
  return named_by(function, [&] {
    Gradients look;
    return look.needs_framework(arguments.mat_a, "mat_a") || look.needs_framework(arguments.mat_b, "mat_b") ||
           look.needs_framework(arguments.bias, "bias") || look.needs_framework(arguments.scale_a, "scale_a") ||
           look.needs_framework(arguments.scale_b, "scale_b");
  });
}

}  // namespace gg
