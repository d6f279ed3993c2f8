#include "api/bind_experts.hpp"

#include "api/fused_experts.hpp"
#include "api/python_errors.hpp"

namespace py = pybind11;

namespace gg {
namespace {

constexpr Py_ssize_t argument_count = 17;

// Sets `truth` to that of an argument; false with an error set.
bool read_truth(PyObject* value, bool& truth) {
  const int is_true = PyObject_IsTrue(value);
  truth = is_true == 1;
  return is_true >= 0;
}

// Runs for each layer of a model, hence past pybind11's dispatcher.
PyObject* call_fused_experts(PyObject*, PyObject* const* given, Py_ssize_t count) {
  if (count != argument_count) {
    PyErr_Format(PyExc_TypeError, "fused_experts takes %zd arguments, %zd were given", argument_count, count);
    return nullptr;
  }
  ExpertsArguments arguments{given[0],  given[1],  given[2], given[3], given[4],  given[5],
                             given[6],  given[7],  given[8], given[9], given[11], given[13],
                             given[14], given[15], false,    false,    0};
  if (!read_truth(given[10], arguments.weights_on_input)) return nullptr;
  if (!read_truth(given[16], arguments.batch_invariant)) return nullptr;
  arguments.scale = PyFloat_AsDouble(given[12]);
  if (arguments.scale == -1 && PyErr_Occurred()) return nullptr;
  return guarded([&] { return fused_experts(arguments); });
}

PyMethodDef fused_experts_method{"fused_experts",
                                 reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&call_fused_experts)),
                                 METH_FASTCALL, nullptr};

size_t fused_experts_workspace(int64_t tokens, int64_t top_k, int64_t experts, int64_t hidden, int64_t intermediate,
                               py::handle activation, py::handle max_rows) {
  return workspace_bytes({tokens, top_k, experts, hidden, intermediate, activation, max_rows});
}

}  // namespace

void bind_experts(py::module_& m) {
  m.attr("fused_experts") = py::reinterpret_steal<py::object>(PyCFunction_New(&fused_experts_method, nullptr));
  m.def("fused_experts_workspace", &fused_experts_workspace);
}

}  // namespace gg
