#include "api/bind_experts.hpp"

#include <pybind11/stl.h>

#include "api/experts_plan.hpp"
#include "api/explain.hpp"
#include "api/fused_experts.hpp"
#include "api/python_errors.hpp"
#include "arrays/dtype.hpp"
#include "forms/checks.hpp"

namespace py = pybind11;

namespace gg {
namespace {

// The arguments of a layer by position, as _C.pyi has them.
// clang-format off
enum Position : Py_ssize_t {
  x, w1, w2, topk_weights, topk_ids, activation, gate_up, swiglu_limit, b1, b2, expert_map, weights_on_input, add,
  scale, out, workspace, max_rows, batch_invariant, w1_scale, w2_scale, argument_count,
};
// clang-format on

// Sets `truth` to that of an argument; false with an error set.
bool read_truth(PyObject* value, bool& truth) {
  const int is_true = PyObject_IsTrue(value);
  truth = is_true == 1;
  return is_true >= 0;
}

// False with an error set.
bool read_arguments(const char* function, PyObject* const* given, ExpertsArguments& arguments) {
  arguments.x = given[x], arguments.w1 = given[w1], arguments.w2 = given[w2];
  arguments.topk_weights = given[topk_weights], arguments.topk_ids = given[topk_ids];
  arguments.activation = given[activation], arguments.gate_up = given[gate_up];
  arguments.swiglu_limit = given[swiglu_limit];
  arguments.b1 = given[b1], arguments.b2 = given[b2], arguments.expert_map = given[expert_map];
  arguments.add = given[add], arguments.out = given[out];
  arguments.workspace = given[workspace], arguments.max_rows = given[max_rows];
  arguments.w1_scale = given[w1_scale], arguments.w2_scale = given[w2_scale];
  if (!read_truth(given[weights_on_input], arguments.weights_on_input)) return false;
  if (!read_truth(given[batch_invariant], arguments.batch_invariant)) return false;
  try {
    arguments.scale = number({function, "scale"}, given[scale]);
  } catch (...) {
    set_current_error();
    return false;
  }
  return true;
}

bool read_count(const char* function, Py_ssize_t count) {
  if (count == argument_count) return true;
  PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, %zd were given", function, Py_ssize_t{argument_count}, count);
  return false;
}

// Runs for each layer of a model, hence past pybind11's dispatcher.
PyObject* call_fused_experts(PyObject*, PyObject* const* given, Py_ssize_t count) {
  ExpertsArguments arguments;
  if (!read_count("fused_experts", count) || !read_arguments("fused_experts", given, arguments)) return nullptr;
  return guarded([&] { return fused_experts(arguments); });
}

ExpertsArguments arguments_of(const char* function, const py::args& given) {
  ExpertsArguments arguments;
  const auto count = static_cast<Py_ssize_t>(given.size());
  PyObject* const* values = reinterpret_cast<PyTupleObject*>(given.ptr())->ob_item;
  if (!read_count(function, count) || !read_arguments(function, values, arguments)) throw py::error_already_set();
  return arguments;
}

PyMethodDef fused_experts_method{"fused_experts",
                                 reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&call_fused_experts)),
                                 METH_FASTCALL, nullptr};

size_t fused_experts_workspace(py::handle tokens, py::handle top_k, py::handle experts, py::handle hidden,
                               py::handle intermediate, py::handle activation, py::handle max_rows, bool quantized) {
  const auto size = [](const char* what, py::handle value) {
    return integer({"fused_experts_workspace", what}, value);
  };
  return workspace_bytes({size("tokens", tokens), size("top_k", top_k), size("experts", experts),
                          size("hidden", hidden), size("intermediate", intermediate), activation, max_rows, quantized});
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
