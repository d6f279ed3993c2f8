#include "forms/check_list.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "arrays/dtype.hpp"
#include "driver/error.hpp"
#include "forms/overlap.hpp"

namespace py = pybind11;

namespace gg {
namespace {

constexpr const char* function = "group_gemm";

ArgumentName argument(const char* list, size_t index) { return {function, list, static_cast<int>(index)}; }

void check_factor(const Tensor& t, const Tensor& first, const ArgumentName& matrix) {
  check_matrix(t, matrix);
  check_operand(t, matrix);
  if (t.dtype == GG_E5M2) {
    reject_type(matrix,
                "has dtype float8_e5m2, which lists do not take; pass it to grouped_mm as mat_a, or convert it to "
                "bfloat16");
  }
  if (t.dtype != first.dtype) {
    reject_type(matrix, std::string("has dtype ") + t.dtype_name + " but A[0] has " + first.dtype_name +
                            "; one call takes one dtype, convert or split the list");
  }
  check_device(t, matrix, first, "A[0]");
}

struct Named {
  const Tensor* tensor;
  Extent memory;
  ArgumentName argument;
  bool is_output;
};

bool has_memory(const Tensor& t) { return t.data != 0 && !is_empty(t); }

// Whether no output's extent meets another's, nor an input's: nearly always so, and sooner known than find_overlap
// could tell, which sorts all arrays.
bool lie_apart(const CheckedList& list) {
  std::vector<Extent> written;
  written.reserve(list.c.size());
  for (const Tensor& t : list.c) {
    if (has_memory(t)) written.push_back(extent(t));
  }
  const auto starts_first = [](const Extent& x, const Extent& y) { return x.low < y.low; };
  if (!std::is_sorted(written.begin(), written.end(), starts_first)) {
    std::sort(written.begin(), written.end(), starts_first);
  }
  for (size_t i = 1; i < written.size(); i++) {
    if (written[i].low < written[i - 1].high) return false;
  }
  const auto is_apart = [&](const Tensor& t) {
    if (!has_memory(t)) return true;
    const Extent read = extent(t);
    const auto ends_behind = [](uint64_t low, const Extent& output) { return low < output.high; };
    const auto next = std::upper_bound(written.begin(), written.end(), read.low, ends_behind);
    return next == written.end() || read.high <= next->low;
  };
  const auto are_apart = [&](const std::vector<Tensor>& tensors) {
    return std::all_of(tensors.begin(), tensors.end(), is_apart);
  };
  return are_apart(list.a) && are_apart(list.b) && is_apart(list.scale_a) && is_apart(list.scale_b) &&
         are_apart(list.scales_a) && are_apart(list.scales_b);
}

// Sweeps over all arrays by address; only pairs with an output in them matter.
void find_overlap(const CheckedList& list) {
  std::vector<Named> all;
  const auto add = [&](const Tensor& t, const ArgumentName& named, bool is_output) {
    if (has_memory(t)) all.push_back({&t, extent(t), named, is_output});
  };
  for (size_t i = 0; i < list.size(); i++) add(list.c[i], argument("out", i), true);
  for (size_t i = 0; i < list.size(); i++) add(list.a[i], argument("A", i), false);
  for (size_t i = 0; i < list.size(); i++) add(list.b[i], argument("B", i), false);
  add(list.scale_a, {function, "scale_a"}, false);
  add(list.scale_b, {function, "scale_b"}, false);
  for (size_t i = 0; i < list.scales_a.size(); i++) add(list.scales_a[i], argument("scale_a", i), false);
  for (size_t i = 0; i < list.scales_b.size(); i++) add(list.scales_b[i], argument("scale_b", i), false);
  std::stable_sort(all.begin(), all.end(), [](const Named& x, const Named& y) { return x.memory.low < y.memory.low; });
  std::vector<const Named*> open;
  for (const Named& next : all) {
    const auto is_behind = [&](const Named* other) { return other->memory.high <= next.memory.low; };
    open.erase(std::remove_if(open.begin(), open.end(), is_behind), open.end());
    for (const Named* other : open) {
      if (!(next.is_output || other->is_output) || side_by_side(*other->tensor, *next.tensor)) continue;
      const Named& output = next.is_output ? next : *other;
      const Named& shared = &output == &next ? *other : next;
      reject(output.argument, "shares memory with " + name(shared.argument) +
                                  ", which would be read or written while it is being written; pass a separate tensor");
    }
    open.push_back(&next);
  }
}

std::vector<Tensor> views(const py::tuple& arrays, const char* list, const Framework* framework, PyTypeObject* type) {
  std::vector<Tensor> tensors;
  tensors.reserve(arrays.size());
  for (size_t i = 0; i < arrays.size(); i++) {
    PyObject* array = PyTuple_GET_ITEM(arrays.ptr(), static_cast<Py_ssize_t>(i));
    const int index = static_cast<int>(i);
    tensors.push_back(named_by(function, [&] {
      const Framework& own = Py_TYPE(array) == type ? *framework : framework_of(array, list, index);
      return own.view(array, list, index);
    }));
  }
  return tensors;
}

void check_products(const CheckedList& list) {
  const Tensor& first = list.a[0];
  for (size_t i = 0; i < list.size(); i++) {
    const Tensor &x = list.a[i], &y = list.b[i];
    const ArgumentName a = argument("A", i), b = argument("B", i);
    check_factor(x, first, a);
    check_factor(y, first, b);
    if (x.shape[1] == y.shape[0]) continue;
    reject(b, "has K=" + std::to_string(y.shape[0]) + " rows but " + name(a) + " has K=" + std::to_string(x.shape[1]) +
                  " columns; C[i] = A[i] @ B[i] needs them equal");
  }
}

void take_scale(py::handle array, const char* what, const CheckedList& list, py::object& kept, Tensor& scale) {
  if (array.is_none()) return;
  kept = py::reinterpret_borrow<py::object>(array);
  scale = view_of(array, {function, what});
  check_scale(scale, {function, what}, list.dtype, static_cast<int64_t>(list.size()));
  check_device(scale, {function, what}, list.a[0], "A[0]");
}

// The address of group `index`'s scale: its own, or the one that all share.
uint64_t scale_of(const Tensor& scale, size_t index) {
  if (scale.data == 0) return 0;
  const int64_t step = scale.shape[0] > 1 ? scale.stride[0] : 0;
  return scale.data + static_cast<uint64_t>(static_cast<int64_t>(index) * step * element_bytes(GG_FP32));
}

// The items of a list or tuple as they are now.
py::tuple snapshot(py::handle object, const char* name) {
  if (PyTuple_Check(object.ptr())) return py::reinterpret_borrow<py::tuple>(object);
  if (PyList_Check(object.ptr())) return py::reinterpret_steal<py::tuple>(PyList_AsTuple(object.ptr()));
  throw TypeError(std::string("group_gemm: ") + name + " is " + kind_of(object) +
                  "; a list or tuple of matrices is needed");
}

bool is_list(py::handle object) { return PyList_Check(object.ptr()) || PyTuple_Check(object.ptr()); }

// A scale of a list, called "scale_b[3]".
Tensor view_of_scale(const CheckedList& list, const py::tuple& arrays, const char* what, size_t index) {
  const py::handle array = PyTuple_GET_ITEM(arrays.ptr(), static_cast<Py_ssize_t>(index));
  const Tensor scale = view_of(array, argument(what, index));
  check_scale_array(scale, argument(what, index), list.dtype);
  check_device(scale, argument(what, index), list.a[0], "A[0]");
  return scale;
}

py::tuple take_scale_list(py::handle object, const char* what, const CheckedList& list) {
  if (!is_list(object)) {
    reject({function, what},
           "is no list, and the other scales are one: pass a list of as many arrays, or one array each");
  }
  const py::tuple arrays = snapshot(object, what);
  if (arrays.size() == list.size()) return arrays;
  throw ValueError(std::string("group_gemm: ") + what + " has " + std::to_string(arrays.size()) +
                   " arrays and the list has " + std::to_string(list.size()) + " products; pass one for each");
}

void check_scale_shape(const Tensor& scale, const ArgumentName& named, const Tensor& a, const Tensor& b, bool of_a,
                       gg_scaling scaling) {
  const int64_t k_blocks = ceil_div(a.shape[1], scale_block);
  const bool by_row = scaling == GG_SCALING_ROW;
  const int64_t along = of_a ? a.shape[0] : by_row ? b.shape[1] : ceil_div(b.shape[1], scale_block);
  const bool fits = scale.rank == (by_row ? 1 : 2) && scale.shape[0] == along && (by_row || scale.shape[1] == k_blocks);
  if (fits) return;
  const std::string needed = by_row ? "[" + std::to_string(along) + "]" : shape(along, k_blocks);
  reject(named, "has shape " + shape(scale) + "; " + needed +
                    " is needed: in a list, scale_a[i] of [M] goes with scale_b[i] of [N], and scale_a[i] of "
                    "[M, K / 128] with scale_b[i] of [N / 128, K / 128], rounded up, the same for all products");
}

// By the rank of the first of scale_b: those of rows and columns, or those of blocks.
void take_scale_lists(const ListArguments& arguments, CheckedList& list) {
  const py::tuple of_a = take_scale_list(arguments.scale_a, "scale_a", list);
  const py::tuple of_b = take_scale_list(arguments.scale_b, "scale_b", list);
  list.scale_array_a = of_a, list.scale_array_b = of_b;
  for (size_t i = 0; i < list.size(); i++) {
    const Tensor a = view_of_scale(list, of_a, "scale_a", i), b = view_of_scale(list, of_b, "scale_b", i);
    if (i == 0) list.scaling = b.rank == 2 ? GG_SCALING_BLOCK : GG_SCALING_ROW;
    check_scale_shape(b, argument("scale_b", i), list.a[i], list.b[i], false, list.scaling);
    check_scale_shape(a, argument("scale_a", i), list.a[i], list.b[i], true, list.scaling);
    list.scales_a.push_back(a), list.scales_b.push_back(b);
  }
}

// The dtype of the first output that was given, which says what an e4m3 product is to be written as.
gg_dtype given_dtype(py::handle out) {
  if (out.is_none()) return GG_ANY_DTYPE;
  const py::tuple arrays = snapshot(out, "out");
  if (arrays.empty()) return GG_ANY_DTYPE;
  const py::handle first = PyTuple_GET_ITEM(arrays.ptr(), 0);
  return view_of(first, argument("out", 0)).dtype;
}

void take_inputs(const ListArguments& arguments, gg_dtype requested, CheckedList& list) {
  list.like = py::reinterpret_borrow<py::object>(PyTuple_GET_ITEM(list.arrays_a.ptr(), 0));
  list.framework = named_by(function, [&] { return &framework_of(list.like, "A", 0); });
  list.a = views(list.arrays_a, "A", list.framework, Py_TYPE(list.like.ptr()));
  list.b = views(list.arrays_b, "B", list.framework, Py_TYPE(list.like.ptr()));
  check_products(list);
  const Tensor& first = list.a[0];
  list.dtype = first.dtype;
  list.device_type = first.device_type;
  list.device = first.device;
  const gg_dtype given = first.dtype == GG_E4M3 ? given_dtype(arguments.out) : GG_ANY_DTYPE;
  list.out_dtype = output_dtype(first.dtype, requested, given, function);
  if (is_list(arguments.scale_a) || is_list(arguments.scale_b)) return take_scale_lists(arguments, list);
  take_scale(arguments.scale_a, "scale_a", list, list.scale_array_a, list.scale_a);
  take_scale(arguments.scale_b, "scale_b", list, list.scale_array_b, list.scale_b);
}

void take_outputs(py::handle out, CheckedList& list) {
  list.arrays_out = snapshot(out, "out");
  list.has_outputs = true;
  const size_t count = list.arrays_out.size();
  if (count != list.size()) {
    throw ValueError("group_gemm: out has " + std::to_string(count) + " matrices and the list has " +
                     std::to_string(list.size()) + " products; pass one output for each");
  }
  if (count == 0) return;
  list.c = views(list.arrays_out, "out", list.framework, Py_TYPE(list.like.ptr()));
  Gradients recorded;
  for (size_t i = 0; i < count; i++) {
    const Tensor& t = list.c[i];
    const ArgumentName named = argument("out", i);
    check_output(t, named, PyTuple_GET_ITEM(list.arrays_out.ptr(), static_cast<Py_ssize_t>(i)),
                 {list.a[i].shape[0], list.b[i].shape[1], list.out_dtype, "A[i] @ B[i]"}, recorded);
    check_device(t, named, list.a[0], "A[0]");
  }
  if (!lie_apart(list)) find_overlap(list);
}

}  // namespace

CheckedList take_lists(const ListArguments& arguments) {
  CheckedList list;
  list.arrays_a = snapshot(arguments.group_a, "group_A");
  list.arrays_b = snapshot(arguments.group_b, "group_B");
  return list;
}

void check_taken(const ListArguments& arguments, CheckedList& list) {
  const py::tuple &a = list.arrays_a, &b = list.arrays_b;
  if (a.size() != b.size()) {
    throw ValueError("group_gemm: group_A has " + std::to_string(a.size()) + " matrices and group_B has " +
                     std::to_string(b.size()) + "; product i needs A[i] and B[i]");
  }
  const gg_dtype requested = requested_dtype(arguments.out_dtype, function);
  if (!a.empty()) take_inputs(arguments, requested, list);
  if (!arguments.out.is_none()) take_outputs(arguments.out, list);
}

CheckedList check_list(const ListArguments& arguments) {
  CheckedList list = take_lists(arguments);
  check_taken(arguments, list);
  return list;
}

namespace {

// `visit(array, name, index)` of each array that may have a gradient, until one of them gives true.
template <typename Visit>
bool any_input(const ListArguments& arguments, const CheckedList& list, const Visit& visit) {
  const auto any_of = [&](const py::tuple& arrays, const char* what) {
    for (size_t i = 0; i < arrays.size(); i++) {
      const py::handle array = PyTuple_GET_ITEM(arrays.ptr(), static_cast<Py_ssize_t>(i));
      if (visit(array, what, static_cast<int>(i))) return true;
    }
    return false;
  };
  const auto any_scale = [&](py::handle scale, const char* what) {
    return is_list(scale) ? any_of(snapshot(scale, what), what) : visit(scale, what, -1);
  };
  return any_of(list.arrays_a, "A") || any_of(list.arrays_b, "B") || any_scale(arguments.scale_a, "scale_a") ||
         any_scale(arguments.scale_b, "scale_b");
}

}  // namespace

bool needs_framework(const ListArguments& arguments, const CheckedList& list) {
  Gradients look;
  const auto needs = [&](py::handle array, const char* what, int index) {
    return look.needs_framework(array, what, index);
  };
  return named_by(function, [&] { return any_input(arguments, list, needs); });
}

bool any_stands_for_others(const ListArguments& arguments, const CheckedList& list) {
  return any_input(arguments, list, [](py::handle array, const char* what, int index) {
    return !array.is_none() && stands_for_others(array, {function, what, index});
  });
}

void check_gradients(const CheckedList& list, const char* caller) {
  GradientCheck check(caller);
  const auto check_all = [&](const py::tuple& arrays, const char* what) {
    for (size_t i = 0; i < arrays.size(); i++) {
      check(PyTuple_GET_ITEM(arrays.ptr(), static_cast<Py_ssize_t>(i)), what, static_cast<int>(i));
    }
  };
  check_all(list.arrays_a, "A");
  check_all(list.arrays_b, "B");
  const auto check_scales = [&](const py::object& scale, const char* what) {
    if (scale && is_list(scale)) check_all(py::reinterpret_borrow<py::tuple>(scale), what);
    else if (scale) check(scale, what);
  };
  check_scales(list.scale_array_a, "scale_a");
  check_scales(list.scale_array_b, "scale_b");
}

std::vector<Group> make_groups(const CheckedList& list) {
  std::vector<Group> groups;
  groups.reserve(list.size());
  for (size_t i = 0; i < list.size(); i++) {
    const Tensor &a = list.a[i], &b = list.b[i], &c = list.c[i];
    const bool by_list = list.scaling != GG_SCALING_TENSOR;
    const uint64_t scale_a = by_list ? list.scales_a[i].data : scale_of(list.scale_a, i);
    const uint64_t scale_b = by_list ? list.scales_b[i].data : scale_of(list.scale_b, i);
    groups.push_back({a.data, b.data, c.data, a.stride[0], a.stride[1], b.stride[0], b.stride[1], c.stride[0],
                      c.stride[1], a.shape[0], b.shape[1], a.shape[1], scale_a, scale_b, static_cast<int32_t>(i)});
  }
  return groups;
}

ListProblem problem_of(const CheckedList& list) {
  if (list.scaling == GG_SCALING_TENSOR) return make_problem(list.dtype, list.out_dtype, make_groups(list));
  std::vector<ScaleStrides> strides;
  strides.reserve(list.size());
  for (size_t i = 0; i < list.size(); i++) {
    const Tensor &a = list.scales_a[i], &b = list.scales_b[i];
    const bool by_block = list.scaling == GG_SCALING_BLOCK;
    strides.push_back({a.stride[0], by_block ? a.stride[1] : 0, b.stride[0], by_block ? b.stride[1] : 0});
  }
  return make_problem(list.dtype, list.out_dtype, make_groups(list), list.scaling, std::move(strides));
}

}  // namespace gg
