#include "check.hpp"

#include <algorithm>
#include <limits>
#include <string>

#include "error.hpp"

namespace py = pybind11;

namespace gg {
namespace {

constexpr uint64_t element_bytes = 2;

std::string named(const char* list, size_t index) { return std::string(list) + "[" + std::to_string(index) + "]"; }

std::string place(const Tensor& t) {
  if (t.device_type == DeviceType::cpu) return "the CPU";
  if (t.device_type == DeviceType::cuda) return "cuda:" + std::to_string(t.device);
  return "a device that is neither CPU nor CUDA";
}

std::string shape(int64_t rows, int64_t columns) {
  return "[" + std::to_string(rows) + ", " + std::to_string(columns) + "]";
}

[[noreturn]] void reject(const std::string& text) { throw ValueError("group_gemm: " + text); }

void check_matrix(const Tensor& t, const char* list, size_t index) {
  if (t.rank != 2) {
    reject(named(list, index) + " has " + std::to_string(t.rank) + " dimensions, a matrix is needed; reshape it to 2");
  }
  if (t.dtype == GG_ANY_DTYPE) {
    throw TypeError("group_gemm: " + named(list, index) + " has dtype " + t.dtype_name +
                    ", float16 or bfloat16 is needed; convert it first");
  }
  if (t.data % element_bytes != 0) {
    reject(named(list, index) + " is at an odd address; its elements must lie on multiples of 2 bytes, copy it first");
  }
  if (t.device_type == DeviceType::other) reject(named(list, index) + " is on " + place(t) + "; move it to a CUDA device");
  constexpr int64_t limit = std::numeric_limits<int32_t>::max();
  if (t.shape[0] > limit || t.shape[1] > limit) {
    reject(named(list, index) + " has shape " + shape(t.shape[0], t.shape[1]) + ", a dimension may have up to 2147483647; split it");
  }
}

void check_same(const Tensor& t, const Tensor& first, const char* list, size_t index) {
  if (t.dtype != first.dtype) {
    throw TypeError("group_gemm: " + named(list, index) + " has dtype " + t.dtype_name + " but A[0] has " + first.dtype_name +
                    "; one call takes one dtype, convert or split the list");
  }
  if (t.device_type != first.device_type || t.device != first.device) {
    reject(named(list, index) + " is on " + place(t) + " but A[0] is on " + place(first) + "; move all to one device");
  }
}

// Memory that a matrix touches: [low, high) in bytes.
struct Extent {
  uint64_t low, high;
};

Extent extent(const Tensor& t) {
  uint64_t low = t.data, high = t.data + element_bytes;
  for (int d = 0; d < 2; d++) {
    const uint64_t reach = static_cast<uint64_t>((t.shape[d] - 1) * t.stride[d]) * element_bytes;
    (t.stride[d] < 0 ? low : high) += reach;
  }
  return {low, high};
}

bool is_empty(const Tensor& t) { return t.shape[0] == 0 || t.shape[1] == 0; }

// Column blocks of one row-major buffer interleave without sharing an element.
bool side_by_side(const Tensor& x, const Tensor& y) {
  const int64_t pitch = x.stride[0];
  if (pitch != y.stride[0] || x.stride[1] != 1 || y.stride[1] != 1 || pitch < x.shape[1] + y.shape[1]) return false;
  const int64_t bytes = pitch * static_cast<int64_t>(element_bytes);
  int64_t ahead = (static_cast<int64_t>(y.data) - static_cast<int64_t>(x.data)) % bytes;
  if (ahead < 0) ahead += bytes;
  const int64_t column = ahead / static_cast<int64_t>(element_bytes);
  return column >= x.shape[1] && column + y.shape[1] <= pitch;
}

void check_own_memory(const Tensor& t, size_t index) {
  const int inner = std::abs(t.stride[0]) < std::abs(t.stride[1]) ? 0 : 1, outer = 1 - inner;
  const bool inner_repeats = t.shape[inner] > 1 && t.stride[inner] == 0;
  const bool rows_meet = t.shape[outer] > 1 && std::abs(t.stride[outer]) <= (t.shape[inner] - 1) * std::abs(t.stride[inner]);
  if (inner_repeats || rows_meet) {
    reject("out[" + std::to_string(index) + "] has elements that share memory (strides " +
           shape(t.stride[0], t.stride[1]) + "); pass a tensor whose elements are distinct");
  }
}

struct Named {
  const Tensor* tensor;
  Extent memory;
  const char* list;
  size_t index;
};

// Sweeps over all arrays by address; only pairs with an output in them matter.
void check_overlap(const Inputs& inputs, const std::vector<Tensor>& outputs) {
  std::vector<Named> all;
  const auto add = [&](const std::vector<Tensor>& tensors, const char* list) {
    for (size_t i = 0; i < tensors.size(); i++) {
      if (!is_empty(tensors[i])) all.push_back({&tensors[i], extent(tensors[i]), list, i});
    }
  };
  add(outputs, "out");
  const size_t output_count = all.size();
  for (size_t i = 0; i < output_count; i++) check_own_memory(*all[i].tensor, all[i].index);
  add(inputs.a, "A");
  add(inputs.b, "B");
  std::sort(all.begin(), all.end(), [](const Named& x, const Named& y) { return x.memory.low < y.memory.low; });
  std::vector<const Named*> open;
  for (const Named& next : all) {
    open.erase(std::remove_if(open.begin(), open.end(), [&](const Named* o) { return o->memory.high <= next.memory.low; }),
               open.end());
    for (const Named* other : open) {
      const bool writes = next.list[0] == 'o' || other->list[0] == 'o';
      if (!writes || side_by_side(*other->tensor, *next.tensor)) continue;
      const Named& output = next.list[0] == 'o' ? next : *other;
      const Named& shared = &output == &next ? *other : next;
      reject(named("out", output.index) + " shares memory with " + named(shared.list, shared.index) +
             ", which would be read or written while it is being written; pass a separate tensor");
    }
    open.push_back(&next);
  }
}

std::vector<Tensor> views(const py::tuple& arrays, const char* name, const Framework* framework, PyTypeObject* type) {
  std::vector<Tensor> tensors;
  tensors.reserve(arrays.size());
  for (size_t i = 0; i < arrays.size(); i++) {
    PyObject* array = PyTuple_GET_ITEM(arrays.ptr(), static_cast<Py_ssize_t>(i));
    const int index = static_cast<int>(i);
    const Framework& own = Py_TYPE(array) == type ? *framework : framework_of(array, name, index);
    tensors.push_back(own.view(array, name, index));
  }
  return tensors;
}

}  // namespace

py::tuple snapshot(py::handle object, const char* name) {
  if (PyTuple_Check(object.ptr())) return py::reinterpret_borrow<py::tuple>(object);
  if (PyList_Check(object.ptr())) return py::reinterpret_steal<py::tuple>(PyList_AsTuple(object.ptr()));
  throw TypeError(std::string("group_gemm: ") + name + " is a " + Py_TYPE(object.ptr())->tp_name +
                  ", a list or tuple of matrices is needed");
}

Inputs check_inputs(py::handle group_a, py::handle group_b) {
  Inputs inputs;
  inputs.arrays_a = snapshot(group_a, "group_A");
  inputs.arrays_b = snapshot(group_b, "group_B");
  const py::tuple &a = inputs.arrays_a, &b = inputs.arrays_b;
  if (a.size() != b.size()) {
    reject("group_A has " + std::to_string(a.size()) + " matrices and group_B has " + std::to_string(b.size()) +
           "; product i needs A[i] and B[i]");
  }
  if (a.empty()) return inputs;
  inputs.like = py::reinterpret_borrow<py::object>(PyTuple_GET_ITEM(a.ptr(), 0));
  inputs.framework = &framework_of(inputs.like, "A", 0);
  inputs.a = views(a, "A", inputs.framework, Py_TYPE(inputs.like.ptr()));
  inputs.b = views(b, "B", inputs.framework, Py_TYPE(inputs.like.ptr()));
  const Tensor& first = inputs.a[0];
  for (size_t i = 0; i < inputs.size(); i++) {
    const Tensor &x = inputs.a[i], &y = inputs.b[i];
    check_matrix(x, "A", i);
    check_matrix(y, "B", i);
    check_same(x, first, "A", i);
    check_same(y, first, "B", i);
    if (x.shape[1] != y.shape[0]) {
      reject(named("B", i) + " has K=" + std::to_string(y.shape[0]) + " rows but " + named("A", i) + " has K=" +
             std::to_string(x.shape[1]) + " columns; C[i] = A[i] @ B[i] needs them equal");
    }
  }
  inputs.dtype = first.dtype;
  inputs.device_type = first.device_type;
  inputs.device = first.device;
  return inputs;
}

std::vector<Tensor> check_outputs(const py::tuple& list, const Inputs& inputs) {
  const size_t count = list.size();
  if (count != inputs.size()) {
    reject("out has " + std::to_string(count) + " matrices and the list has " + std::to_string(inputs.size()) +
           " products; pass one output for each");
  }
  if (count == 0) return {};
  std::vector<Tensor> outputs = views(list, "out", inputs.framework, Py_TYPE(inputs.like.ptr()));
  for (size_t i = 0; i < count; i++) {
    const Tensor& t = outputs[i];
    check_matrix(t, "out", i);
    check_same(t, inputs.a[0], "out", i);
    const int64_t rows = inputs.a[i].shape[0], columns = inputs.b[i].shape[1];
    if (t.shape[0] != rows || t.shape[1] != columns) {
      reject(named("out", i) + " has shape " + shape(t.shape[0], t.shape[1]) + ", A[i] @ B[i] has " + shape(rows, columns));
    }
    const py::handle item = PyTuple_GET_ITEM(list.ptr(), static_cast<Py_ssize_t>(i));
    if (framework_of(item, "out", static_cast<int>(i)).requires_grad(item)) {
      reject(named("out", i) + " requires grad and would be written in place; pass out[i].detach() or use torch.no_grad()");
    }
  }
  check_overlap(inputs, outputs);
  return outputs;
}

std::vector<Group> make_groups(const Inputs& inputs, const std::vector<Tensor>& outputs) {
  std::vector<Group> groups;
  groups.reserve(inputs.size());
  for (size_t i = 0; i < inputs.size(); i++) {
    const Tensor &a = inputs.a[i], &b = inputs.b[i], &c = outputs[i];
    groups.push_back({a.data, b.data, c.data, a.stride[0], a.stride[1], b.stride[0], b.stride[1], c.stride[0], c.stride[1],
                      a.shape[0], b.shape[1], a.shape[1]});
  }
  return groups;
}

}  // namespace gg
