#include "forms/checks.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "arrays/array_protocols.hpp"
#include "arrays/dtype.hpp"
#include "driver/error.hpp"
#include "forms/overlap.hpp"

namespace py = pybind11;

namespace gg {
namespace {

std::string listed(const int64_t* values, int rank) {
  std::string text = "[";
  for (int d = 0; d < rank && d < 3; d++) text += (d ? ", " : "") + std::to_string(values[d]);
  return text + (rank > 3 ? ", ...]" : "]");
}

std::string dimensions(int count) { return std::to_string(count) + (count == 1 ? " dimension" : " dimensions"); }

}  // namespace

std::string name(const ArgumentName& argument) { return array_name(argument.what, argument.index); }

void reject(const ArgumentName& argument, const std::string& text) {
  throw ValueError(std::string(argument.function) + ": " + name(argument) + " " + text);
}

void reject_type(const ArgumentName& argument, const std::string& text) {
  throw TypeError(std::string(argument.function) + ": " + name(argument) + " " + text);
}

std::string place(const Tensor& t) {
  if (t.device_type == DeviceType::cpu) return "the CPU";
  if (t.device_type == DeviceType::cuda) return "cuda:" + std::to_string(t.device);
  return "a device that is neither CPU nor CUDA";
}

std::string shape(const Tensor& t) { return listed(t.shape, t.rank); }

std::string shape(int64_t rows, int64_t columns) {
  return "[" + std::to_string(rows) + ", " + std::to_string(columns) + "]";
}

bool is_number(py::handle value) {
  const char* type = Py_TYPE(value.ptr())->tp_name;
  const bool is_numpy_scalar = std::strncmp(type, "numpy.", 6) == 0 && std::strcmp(type, "numpy.ndarray") != 0;
  return PyFloat_Check(value.ptr()) || PyLong_Check(value.ptr()) || is_numpy_scalar;
}

double number(const ArgumentName& argument, py::handle value) {
  const char* type = Py_TYPE(value.ptr())->tp_name;
  if (!is_number(value) && std::strncmp(type, "numpy.", 6) != 0 && PyObject_HasAttrString(value.ptr(), "__dlpack__")) {
    reject_type(argument, "is " + kind_of(value) + "; a number is needed: float(" + name(argument) +
                              ") reads it, waits for the device and has no gradient");
  }
  const double read = PyFloat_AsDouble(value.ptr());
  if (read != -1 || !PyErr_Occurred()) {
    const bool fits = !std::isfinite(read) || std::abs(read) <= std::numeric_limits<float>::max();
    if (!fits) reject(argument, "is beyond what a float32 holds, in which kernels multiply; a smaller one is needed");
    return read;
  }
  const bool is_too_large = PyErr_ExceptionMatches(PyExc_OverflowError) != 0;
  PyErr_Clear();
  if (is_too_large) reject(argument, "is an integer beyond what a float holds; a number that it holds is needed");
  reject_type(argument, "is " + kind_of(value) + "; a number is needed");
}

int64_t integer(const ArgumentName& argument, py::handle value) {
  if (PyIndex_Check(value.ptr())) {
    const Py_ssize_t read = PyNumber_AsSsize_t(value.ptr(), PyExc_OverflowError);
    if (read != -1 || !PyErr_Occurred()) return read;
    const bool is_too_large = PyErr_ExceptionMatches(PyExc_OverflowError) != 0;
    PyErr_Clear();  // else of an array of several integers, say
    if (is_too_large) reject(argument, "is an integer beyond 64 bits; one of 64 bits is needed");
  }
  reject_type(argument, "is " + kind_of(value) + "; an integer is needed");
}

Tensor view_of(py::handle array, const ArgumentName& argument) {
  return named_by(argument.function, [&] {
    return framework_of(array, argument.what, argument.index).view(array, argument.what, argument.index);
  });
}

Tensor view_if_given(py::handle array, const ArgumentName& argument) {
  if (array.is_none()) return {};
  const Tensor seen = view_of(array, argument);
  if (seen.rank == 0) reject(argument, "has shape [], that of a number; an array with dimensions is needed, or None");
  return seen;
}

void CheckedCall::take(py::handle first, const Tensor& seen, const char* what) {
  framework = &framework_of(first, what, -1);
  like = py::reinterpret_borrow<py::object>(first);
  device_type = seen.device_type, device = seen.device;
}

void Gradients::look_at(py::handle array, const char* what, int index) {
  if (Py_TYPE(array.ptr()) == type_) return;
  framework_ = &framework_of(array, what, index);
  if (framework_->is_traced()) {
    throw RuntimeError(array_name(what, index) +
                       ": torch.jit.trace would record this call's outputs and not the call; use torch.export or "
                       "torch.compile, which find an op in its place");
  }
  recording_ = framework_->records_gradients(), forward_mode_ = framework_->in_forward_mode();
  type_ = Py_TYPE(array.ptr());
}

bool Gradients::operator()(py::handle array, const char* what, int index) {
  look_at(array, what, index);
  return recording_ && framework_->requires_grad(array);
}

bool Gradients::has_tangent(py::handle array, const char* what, int index) {
  look_at(array, what, index);
  return forward_mode_ && framework_->has_tangent(array);
}

bool Gradients::needs_framework(py::handle array, const char* what, int index) {
  if (array.is_none()) return false;
  look_at(array, what, index);
  return framework_->stands_for_others() || (recording_ && framework_->requires_grad(array)) ||
         (forward_mode_ && framework_->has_tangent(array));
}

bool stands_for_others(py::handle array, const ArgumentName& argument) {
  return named_by(argument.function,
                  [&] { return framework_of(array, argument.what, argument.index).stands_for_others(); });
}

void GradientCheck::operator()(py::handle array, const char* what, int index) {
  if (array.is_none()) return;
  if (named_by(function_, [&] { return recorded_.has_tangent(array, what, index); })) {
    throw RuntimeError(
        std::string(function_) + ": " + array_name(what, index) +
        " has a tangent, and there are no forward-mode derivatives: it would be lost; call it outside of "
        "torch.autograd.forward_ad.dual_level()");
  }
  if (!recorded_(array, what, index)) return;
  const std::string name = array_name(what, index);
  throw RuntimeError(std::string(function_) + ": " + name +
                     " requires grad, and gradients are not recorded: they would be lost; call it under "
                     "torch.no_grad(), or pass " +
                     name + ".detach()");
}

void check_matrix(const Tensor& t, const ArgumentName& argument) {
  if (t.rank == 2) return;
  reject(argument, "has " + dimensions(t.rank) + "; a matrix is needed: reshape it to 2");
}

void check_stack(const Tensor& t, const ArgumentName& argument) {
  if (t.rank == 3) return;
  reject(argument, "has " + dimensions(t.rank) + "; a matrix for each group is needed, 3 dimensions");
}

void check_operand(const Tensor& t, const ArgumentName& argument) {
  if (t.dtype == GG_ANY_DTYPE || t.dtype == GG_FP32) {
    reject_type(argument, std::string("has dtype ") + t.dtype_name +
                              "; float16, bfloat16 or float8_e4m3fn is needed: convert it first");
  }
  check_memory(t, argument);
}

void check_memory(const Tensor& t, const ArgumentName& argument) {
  const auto bytes = static_cast<uint64_t>(bytes_of(t));  // a power of two: no division
  if ((t.data & (bytes - 1)) != 0) {
    reject(argument, "is at an address that is no multiple of " + std::to_string(bytes) +
                         " bytes, the size of its elements; copy it first");
  }
  if (t.device_type == DeviceType::other) reject(argument, "is on " + place(t) + "; move it to a CUDA device");
  constexpr int64_t limit = std::numeric_limits<int32_t>::max();
  const auto [least, most] = std::minmax({t.shape[0], t.shape[1], t.shape[2]});
  if (least < 0 || most > limit) {
    reject(argument, "has shape " + shape(t) + ", a dimension may have from 0 up to 2147483647; split it");
  }
  if (is_addressable(t)) return;
  reject(argument, "has shape " + shape(t) + " and strides " + listed(t.stride, t.rank) +
                       ", which reach past the address space; check how this view was made");
}

void check_device(const Tensor& t, const ArgumentName& argument, const Tensor& first, const char* first_name) {
  if (t.device_type == first.device_type && t.device == first.device) return;
  reject(argument, "is on " + place(t) + " but " + first_name + " is on " + place(first) + "; move all to one device");
}

void check_integers(const Tensor& t, const ArgumentName& argument, int rank) {
  if (std::strcmp(t.dtype_name, "int32") != 0 && std::strcmp(t.dtype_name, "int64") != 0) {
    reject_type(argument, std::string("has dtype ") + t.dtype_name + "; int32 or int64 is needed: convert it");
  }
  if (t.rank != rank) {
    reject(argument,
           "has shape " + shape(t) + "; " + dimensions(rank) + (rank > 1 ? " are" : " is") + " needed: reshape it");
  }
  check_memory(t, argument);
  check_contiguous(t, argument);
}

void check_contiguous(const Tensor& t, const ArgumentName& argument) {
  if (is_empty(t)) return;
  int64_t step = 1;
  for (int d = t.rank - 1; d >= 0; d--) {
    if (t.shape[d] > 1 && t.stride[d] != step) {
      reject(argument, "has shape " + shape(t) + " and strides " + listed(t.stride, t.rank) +
                           "; its elements must lie one behind the other: pass a contiguous copy");
    }
    step *= t.shape[d];
  }
}

void check_rows(const Tensor& t, const ArgumentName& argument) {
  check_matrix(t, argument);
  if (t.dtype != GG_FP16 && t.dtype != GG_BF16) {
    reject_type(argument, std::string("has dtype ") + t.dtype_name + "; float16 or bfloat16 is needed: convert it");
  }
  check_memory(t, argument);
  if (!is_empty(t) && t.shape[1] > 1 && t.stride[1] != 1) {
    reject(argument,
           "has stride " + std::to_string(t.stride[1]) +
               " between columns; the elements of a row must lie one behind the other: pass a row-major array");
  }
}

void check_slot_weights(const Tensor& t, const ArgumentName& argument, const Tensor& slots, const char* slots_name) {
  if (t.dtype != GG_FP32 && t.dtype != GG_FP16 && t.dtype != GG_BF16) {
    reject_type(argument,
                std::string("has dtype ") + t.dtype_name + "; float32, float16 or bfloat16 is needed: convert it");
  }
  check_memory(t, argument);
  if (t.rank != 2 || t.shape[0] != slots.shape[0] || t.shape[1] != slots.shape[1]) {
    reject(argument,
           "has shape " + shape(t) + " but " + slots_name + " has " + shape(slots) + "; they need to be equal");
  }
  check_contiguous(t, argument);
  check_device(t, argument, slots, slots_name);
}

void check_slots(const Tensor& t, const ArgumentName& argument) {
  constexpr int64_t limit = std::numeric_limits<int32_t>::max();
  if (t.shape[0] * t.shape[1] <= limit) return;
  reject(argument, "has shape " + shape(t) + ", one call takes up to 2147483647 slots; split the tokens");
}

void check_separate(const Tensor& out, const ArgumentName& argument, const Tensor& read, const char* read_name) {
  if (!may_share(read, out)) return;
  reject(argument, std::string("shares memory with ") + read_name +
                       ", which would be read while it is being written; pass a separate tensor");
}

bool is_one(const Tensor& t) { return t.rank <= 3 && t.shape[0] == 1 && t.shape[1] == 1 && t.shape[2] == 1; }

void check_scale_array(const Tensor& scale, const ArgumentName& argument, gg_dtype inputs) {
  if (!is_fp8(inputs)) {
    reject(argument, std::string("is given, but the inputs are ") + full_name(inputs) +
                         ": scales are for float8_e4m3fn and float8_e5m2; leave it out");
  }
  if (scale.dtype != GG_FP32) {
    reject_type(argument, std::string("has dtype ") + scale.dtype_name + "; float32 is needed: convert it");
  }
  check_memory(scale, argument);
}

void check_scale(const Tensor& scale, const ArgumentName& argument, gg_dtype inputs, int64_t count) {
  check_scale_array(scale, argument, inputs);
  if (is_one(scale) || (scale.rank == 1 && scale.shape[0] == count)) return;
  const std::string more = count == 1 ? "" : ", or [" + std::to_string(count) + "], one for each group";
  reject(argument, "has shape " + shape(scale) + "; 1 element is needed" + more);
}

void check_output(const Tensor& t, const ArgumentName& argument, py::handle array, const OutputSpec& wanted,
                  Gradients& recorded) {
  const int64_t sizes[3] = {wanted.groups, wanted.rows, wanted.columns};
  const int rank = wanted.is_stack() ? 3 : 2;
  const int64_t* first = sizes + 3 - rank;
  if (wanted.is_stack()) check_stack(t, argument);
  else check_matrix(t, argument);
  if (t.dtype != wanted.dtype) {
    reject_type(argument, std::string("has dtype ") + t.dtype_name + " but " + wanted.product + " has " +
                              full_name(wanted.dtype) + "; pass an array of that dtype, or convert the result");
  }
  check_memory(t, argument);
  if (!std::equal(first, first + rank, t.shape)) {
    reject(argument, "has shape " + shape(t) + ", " + wanted.product + " has " + listed(first, rank));
  }
  if (t.read_only) reject(argument, "is read-only; pass an array that may be written");
  if (framework_of(array, argument.what, argument.index).immutable()) {
    reject(argument, "is of a framework whose arrays never change; leave it out, and new ones are made");
  }
  if (named_by(argument.function, [&] { return recorded(array, argument.what, argument.index); })) {
    reject(argument,
           "requires grad and would be written in place; pass " + name(argument) + ".detach() or use torch.no_grad()");
  }
  if (recorded.has_tangent(array, argument.what, argument.index)) {
    reject(argument, "has a tangent, which what is written would not have; pass an array without one");
  }
  if (is_empty(t) || !shares_with_itself(t)) return;
  reject(argument, "has elements that share memory (strides " + listed(t.stride, rank) +
                       "); pass a tensor whose elements are distinct");
}

}  // namespace gg
