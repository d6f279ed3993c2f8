#include "grouped_gemm.hpp"

#include "error.hpp"
#include "list.hpp"

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
  std::vector<std::pair<int64_t, int64_t>> shapes;
  shapes.reserve(inputs.size());
  for (size_t i = 0; i < inputs.size(); i++) shapes.emplace_back(inputs.a[i].shape[0], inputs.b[i].shape[1]);
  std::vector<py::object> made = inputs.framework->empty(inputs.like, shapes);
  std::vector<Tensor> tensors = views_of_new(made, *inputs.framework);
  py::list list(made.size());
  for (size_t i = 0; i < made.size(); i++) PyList_SET_ITEM(list.ptr(), static_cast<Py_ssize_t>(i), made[i].release().ptr());
  return {std::move(list), std::move(tensors)};
}

Outputs given_or_new(py::handle out, const Inputs& inputs) {
  if (out.is_none()) return make_outputs(inputs);
  const py::tuple given = snapshot(out, "out");
  std::vector<Tensor> tensors = check_outputs(given, inputs);
  return {py::list(given), std::move(tensors)};
}

Choice forced(const std::string& variant, const Problem& problem, const Device& device) {
  const gg_artifact* artifact = find_artifact(variant);
  if (!artifact) throw ValueError("Plan: no variant is called " + variant + "; gg_runtime.kernels() lists them");
  const std::string why = ruled_out(*artifact, problem, device);
  if (!why.empty()) throw ValueError("Plan: variant " + variant + " cannot take this list: " + why);
  return {artifact, image_for(*artifact, device), 0, false};
}

int fact(const py::dict& described, const char* name) {
  if (!described.contains(name)) {
    throw ValueError(std::string("explain: device lacks \"") + name +
                     "\"; it needs sm, multiprocessors and shared_bytes_per_block");
  }
  const int value = described[name].cast<int>();
  if (value > 0) return value;
  throw ValueError("explain: device has " + std::string(name) + " = " + std::to_string(value) + ", a positive number is needed");
}

Device described_device(const py::dict& facts) {
  Device device{};
  device.ordinal = -1;
  device.sm = fact(facts, "sm");
  device.multiprocessors = fact(facts, "multiprocessors");
  device.shared_bytes_per_block = fact(facts, "shared_bytes_per_block");
  device.name = "the device described";
  return device;
}

// Outputs as group_gemm would make them, for explain, which allocates nothing.
std::vector<Tensor> imagined_outputs(const Inputs& inputs) {
  std::vector<Tensor> tensors;
  for (size_t i = 0; i < inputs.size(); i++) {
    Tensor t = inputs.a[i];
    t.data = 0;
    t.shape[1] = t.stride[0] = inputs.b[i].shape[1];
    t.stride[1] = 1;
    tensors.push_back(t);
  }
  return tensors;
}

py::dict explained(const Problem& problem, const Device& device) {
  py::dict result;
  result["device"] = device.name;
  py::list candidates;
  if (problem.groups.empty()) {
    result["variant"] = py::none();
    result["reason"] = "nothing to compute: no output element";
    result["predicted_us"] = 0.0;
    result["from_ptx"] = false;
    result["launches"] = 0;
    result["candidates"] = candidates;
    return result;
  }
  const Choice choice = select(problem, device);
  for (const Considered& one : considered(problem, device)) {
    py::dict candidate;
    candidate["variant"] = one.artifact->name;
    candidate["predicted_us"] = one.ruled_out.empty() ? py::cast(one.predicted_us) : py::none();
    candidate["ruled_out"] = one.ruled_out.empty() ? py::none() : py::object(py::str(one.ruled_out));
    candidates.append(candidate);
  }
  const size_t words = list_word_count(*choice.artifact, problem.groups.size()), by_value = static_cast<size_t>(choice.artifact->word_capacity);
  const size_t packed = static_cast<size_t>(pack_artifact(device).word_capacity);
  result["variant"] = choice.artifact->name;
  result["reason"] = choice.tuned ? "measured: this list of sizes has a row in the tables" : "cost model: the least predicted time";
  result["predicted_us"] = choice.predicted_us;
  result["from_ptx"] = choice.image == ImageKind::ptx;
  result["launches"] = 1 + (words <= by_value ? 0 : (words + packed - 1) / packed);
  result["candidates"] = candidates;
  return result;
}

}  // namespace

py::object group_gemm(py::handle group_a, py::handle group_b, py::handle out) {
  const Inputs inputs = check_inputs(group_a, group_b);
  if (inputs.size() == 0) {
    if (!out.is_none()) check_outputs(snapshot(out, "out"), inputs);
    return py::list();
  }
  if (inputs.device_type == DeviceType::cpu) {
    if (!out.is_none()) check_outputs(snapshot(out, "out"), inputs);
    return py::none();
  }
  const Device& on = device(inputs.device);
  const Outputs outputs = given_or_new(out, inputs);
  const Problem problem = make_problem(inputs.dtype, make_groups(inputs, outputs.tensors));
  if (!problem.groups.empty()) {
    const CUstream stream = inputs.framework->current_stream(inputs.like, inputs.device);
    ListLaunch(problem, select(problem, on), on, *inputs.framework, inputs.like, stream).run(stream);
  }
  return outputs.list;
}

Plan::Plan(py::handle group_a, py::handle group_b, py::handle out, const std::string& variant)
    : inputs_(check_inputs(group_a, group_b)), out_(py::list()) {
  if (inputs_.size() == 0 || on_cpu()) {
    if (!variant.empty()) throw ValueError("Plan: variant " + variant + " needs matrices on a CUDA device");
    if (!out.is_none()) check_outputs(snapshot(out, "out"), inputs_);
    return;
  }
  device_ = &device(inputs_.device);
  Outputs outputs = given_or_new(out, inputs_);
  out_ = outputs.list;
  outputs_ = py::tuple(out_);
  const Problem problem = make_problem(inputs_.dtype, make_groups(inputs_, outputs.tensors));
  if (problem.groups.empty()) return;
  choice_ = variant.empty() ? select(problem, *device_) : forced(variant, problem, *device_);
  const CUstream stream = inputs_.framework->current_stream(inputs_.like, inputs_.device);
  launch_ = std::make_unique<ListLaunch>(problem, choice_, *device_, *inputs_.framework, inputs_.like, stream);
}

void Plan::run() const {
  if (launch_) launch_->run(inputs_.framework->current_stream(inputs_.like, inputs_.device));
}

py::dict explain(py::handle group_a, py::handle group_b, py::handle out, py::handle device_facts) {
  const Inputs inputs = check_inputs(group_a, group_b);
  const std::vector<Tensor> outputs =
      out.is_none() ? imagined_outputs(inputs) : check_outputs(snapshot(out, "out"), inputs);
  const Problem problem = make_problem(inputs.dtype, make_groups(inputs, outputs));
  if (!device_facts.is_none()) return explained(problem, described_device(py::cast<py::dict>(device_facts)));
  if (inputs.size() > 0 && inputs.device_type != DeviceType::cuda) {
    throw ValueError("explain: the matrices are on the CPU, which takes the reference path; pass device= to ask about a GPU");
  }
  return explained(problem, device(inputs.device));
}

}  // namespace gg
