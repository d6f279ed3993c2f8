#include "api/bind_experts.hpp"

#include <pybind11/stl.h>

#include "api/experts_plan.hpp"
#include "api/explain.hpp"
#include "api/fused_experts.hpp"
#include "api/python_errors.hpp"
#include "arrays/dtype.hpp"

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

// The arguments of a layer, in the order of _C.pyi; false with an error set.
bool read_arguments(PyObject* const* given, ExpertsArguments& arguments) {
  arguments = {given[0], given[1],  given[2],  given[3],  given[4],  given[5], given[6], given[7], given[8],
               given[9], given[11], given[13], given[14], given[15], false,    false,    0};
  if (!read_truth(given[10], arguments.weights_on_input)) return false;
  if (!read_truth(given[16], arguments.batch_invariant)) return false;
  arguments.scale = PyFloat_AsDouble(given[12]);
  return arguments.scale != -1 || !PyErr_Occurred();
}

bool read_count(const char* function, Py_ssize_t count) {
  if (count == argument_count) return true;
  PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, %zd were given", function, argument_count, count);
  return false;
}

// Runs for each layer of a model, hence past pybind11's dispatcher.
PyObject* call_fused_experts(PyObject*, PyObject* const* given, Py_ssize_t count) {
  ExpertsArguments arguments;
  if (!read_count("fused_experts", count) || !read_arguments(given, arguments)) return nullptr;
  return guarded([&] { return fused_experts(arguments); });
}

ExpertsArguments arguments_of(const char* function, const py::args& given) {
  ExpertsArguments arguments;
  const auto count = static_cast<Py_ssize_t>(given.size());
  PyObject* const* values = reinterpret_cast<PyTupleObject*>(given.ptr())->ob_item;
  if (!read_count(function, count) || !read_arguments(values, arguments)) throw py::error_already_set();
  return arguments;
}

PyMethodDef fused_experts_method{"fused_experts",
                                 reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&call_fused_experts)),
                                 METH_FASTCALL, nullptr};

size_t fused_experts_workspace(int64_t tokens, int64_t top_k, int64_t experts, int64_t hidden, int64_t intermediate,
                               py::handle activation, py::handle max_rows) {
  return workspace_bytes({tokens, top_k, experts, hidden, intermediate, activation, max_rows});
}

py::dict explain_experts(const py::args& given) {
  if (given.size() == 0) throw py::type_error("explain_experts takes the arguments of fused_experts, and a device");
  const auto last = static_cast<py::ssize_t>(given.size()) - 1;
  const py::args arguments(given[py::slice(0, last, 1)]);
  return explain(arguments_of("explain_experts", arguments), given[static_cast<size_t>(last)]);
}

// Raises what fused_experts raises for these arguments, which is computed elsewhere.
void only_check(const py::args& given) { check_experts(arguments_of("fused_experts", given)); }

}  // namespace

void bind_experts(py::module_& m) {
  m.attr("fused_experts") = py::reinterpret_steal<py::object>(PyCFunction_New(&fused_experts_method, nullptr));
  m.def("fused_experts_workspace", &fused_experts_workspace);
  m.def("explain_experts", &explain_experts);
  m.def("check_experts", &only_check);
  py::class_<ExpertsPlan>(m, "ExpertsPlan", py::module_local())
      .def(py::init([](const py::args& given) { return new ExpertsPlan(arguments_of("ExpertsPlan", given)); }))
      .def("run", &ExpertsPlan::run)
      .def_property_readonly("out", &ExpertsPlan::out)
      .def_property_readonly("out_dtype", [](const ExpertsPlan& plan) { return full_name(plan.out_dtype()); })
      .def_property_readonly("on_cpu", &ExpertsPlan::on_cpu)
      .def_property_readonly("variants", &ExpertsPlan::variants)
      .def_property_readonly("launches", &ExpertsPlan::launches);
}

}  // namespace gg
