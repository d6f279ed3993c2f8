#include "api/grouped_gemm.hpp"

#include <algorithm>

#include "arrays/array_protocols.hpp"
#include "arrays/dtype.hpp"
#include "driver/error.hpp"
#include "select/parts.hpp"

namespace py = pybind11;

namespace gg {
namespace {

struct Outputs {
  py::object list;  // what the caller gets
  std::vector<Tensor> tensors;
};

std::vector<Tensor> views_of_new(const std::vector<py::object>& made, const Framework& framework) {
  std::vector<Tensor> tensors;
  tensors.reserve(made.size());
  for (size_t i = 0; i < made.size(); i++) tensors.push_back(framework.view(made[i], "out", static_cast<int>(i)));
  return tensors;
}

Outputs make_outputs(const Inputs& inputs) {
  Shapes shapes;
  shapes.reserve(inputs.size());
  for (size_t i = 0; i < inputs.size(); i++) shapes.emplace_back(inputs.a[i].shape[0], inputs.b[i].shape[1]);
  std::vector<py::object> made = inputs.framework->empty(inputs.like, inputs.out_dtype, shapes);
  std::vector<Tensor> tensors = views_of_new(made, *inputs.framework);
  py::list list(made.size());
  for (size_t i = 0; i < made.size(); i++) {
    PyList_SET_ITEM(list.ptr(), static_cast<Py_ssize_t>(i), made[i].release().ptr());
  }
  return {std::move(list), std::move(tensors)};
}

Outputs given_or_new(py::handle out, const Inputs& inputs) {
  if (out.is_none()) return make_outputs(inputs);
  const py::tuple given = snapshot(out, "out");
  std::vector<Tensor> tensors = check_outputs(given, inputs);
  return {py::list(given), std::move(tensors)};
}

// The launches of a Plan. `variant` names an artifact to take for all of it, or is empty.
std::vector<Part> parts_of(ListProblem problem, const Device& on, const std::string& variant) {
  if (variant.empty()) return divide(std::move(problem), on, Use::repeated);
  const Choice choice = forced(variant, problem, on, "Plan");
  std::vector<Part> parts;
  parts.push_back({std::move(problem), choice});
  return parts;
}

void keep_call_memory(Launch& launch, const Device& on, CUstream stream) {
  std::vector<py::object> memory = launch.take_memory();
  if (memory.empty()) return;
  release_retired();
  const CurrentContext current(on);
  keep_if_captured(std::move(memory), stream);
}

bool same_memory(const Tensor& x, const Tensor& y) {
  return x.data == y.data && x.rank == y.rank && std::equal(x.shape, x.shape + 3, y.shape) &&
         std::equal(x.stride, x.stride + 3, y.stride);
}

}  // namespace

py::object group_gemm(const ListArguments& arguments) {
  const Inputs inputs = check_inputs(arguments);
  check_gradients(inputs);
  const py::handle out = arguments.out;
  if (inputs.size() == 0) {
    if (!out.is_none()) check_outputs(snapshot(out, "out"), inputs);
    return py::list();
  }
  if (inputs.device_type == DeviceType::cpu) {
    if (!out.is_none()) check_outputs(snapshot(out, "out"), inputs);
    return py::str(full_name(inputs.out_dtype));
  }
  const Device& on = device(inputs.device);
  const Outputs outputs = given_or_new(out, inputs);
  ListProblem problem = make_problem(inputs.dtype, inputs.out_dtype, make_groups(inputs, outputs.tensors));
  if (!problem.groups.empty()) {
    const CUstream stream = inputs.framework->current_stream(inputs.like, inputs.device);
    for (const Part& part : divide(std::move(problem), on, Use::once)) {
      Launch launch(part.problem, part.choice, on, *inputs.framework, inputs.like, stream);
      launch.run(stream);
      if (!inputs.framework->pools_captures()) keep_call_memory(launch, on, stream);
    }
  }
  return outputs.list;
}

Plan::Plan(const ListArguments& arguments, const std::string& variant, bool checked)
    : inputs_(check_inputs(arguments)),
      out_(py::list()),
      checked_(checked) {
  release_retired();
  check_gradients(inputs_);
  const py::handle out = arguments.out;
  if (inputs_.framework && inputs_.framework->immutable()) {
    throw TypeError(std::string("Plan: A[0] is a ") + Py_TYPE(inputs_.like.ptr())->tp_name +
                    ", of a framework whose arrays never change, and run() writes the same outputs again; call "
                    "group_gemm each time");
  }
  if (inputs_.size() == 0 || on_cpu()) {
    if (!variant.empty()) throw ValueError("Plan: variant " + variant + " needs matrices on a CUDA device");
    if (!out.is_none()) check_outputs(snapshot(out, "out"), inputs_);
    return;
  }
  device_ = &device(inputs_.device);
  Outputs outputs = given_or_new(out, inputs_);
  out_ = outputs.list;
  outputs_ = py::tuple(out_);
  c_ = outputs.tensors;
  ListProblem problem = make_problem(inputs_.dtype, inputs_.out_dtype, make_groups(inputs_, outputs.tensors));
  if (problem.groups.empty()) return;
  const std::vector<Part> parts = parts_of(std::move(problem), *device_, variant);
  choice_ = parts[0].choice;
  const CUstream stream = inputs_.framework->current_stream(inputs_.like, inputs_.device);
  std::vector<py::object> memory;
  for (const Part& part : parts) {
    launches_.push_back(
        std::make_unique<Launch>(part.problem, part.choice, *device_, *inputs_.framework, inputs_.like, stream));
    for (py::object& owner : launches_.back()->take_memory()) memory.push_back(std::move(owner));
  }
  if (memory.empty()) return;
  const CurrentContext current(*device_);
  memory_ = make_retirable<PlanMemory>(std::move(memory), !by_value(), inputs_.framework->pools_captures(), stream);
}

Plan::~Plan() {
  memory_.reset();
  release_retired();
}

void Plan::run() const {
  if (launches_.empty()) return;
  if (checked_) check_arrays();
  const CUstream stream = inputs_.framework->current_stream(inputs_.like, inputs_.device);
  if (!memory_) return launch_on(stream);
  const CurrentContext current(*device_);
  const StreamId foreign = memory_->before_launch(stream, memory_);
  try {
    launch_on(stream);
  } catch (...) {
    memory_->after_launch(stream, foreign);  // of two launches the first may have been given to the stream
    throw;
  }
  memory_->after_launch(stream, foreign);
}

void Plan::launch_on(CUstream stream) const {
  for (const auto& launch : launches_) launch->run(stream);
}

void Plan::check_arrays() const {
  const auto check = [](const py::tuple& arrays, const std::vector<Tensor>& before, const char* list) {
    for (size_t i = 0; i < before.size(); i++) {
      const py::handle array = PyTuple_GET_ITEM(arrays.ptr(), static_cast<Py_ssize_t>(i));
      const int index = static_cast<int>(i);
      if (same_memory(framework_of(array, list, index).view(array, list, index), before[i])) continue;
      throw RuntimeError("Plan: " + array_name(list, index) +
                         " has other memory, another shape or other strides than when the Plan was made; make a new "
                         "Plan");
    }
  };
  check(inputs_.arrays_a, inputs_.a, "A");
  check(inputs_.arrays_b, inputs_.b, "B");
  check(outputs_, c_, "out");
}

bool Plan::by_value() const {
  return !launches_.empty() &&
         std::all_of(launches_.begin(), launches_.end(), [](const auto& launch) { return launch->by_value(); });
}

}  // namespace gg
