#include "explain.hpp"

#include "described.hpp"
#include "error.hpp"
#include "gpus.hpp"
#include "list.hpp"
#include "select.hpp"
#include "shelf.hpp"

namespace py = pybind11;

namespace gg {
namespace {

// Outputs as group_gemm would make them: explain allocates nothing.
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

// Kernels that a list takes: one, and those that write it to device memory if it is too long for parameters.
size_t launches(const Problem& problem, const Choice& choice, const Device& device) {
  const size_t words = list_word_count(*choice.artifact, problem.groups.size());
  if (words <= static_cast<size_t>(choice.artifact->word_capacity)) return 1;
  const auto packed = static_cast<size_t>(pack_artifact(device).word_capacity);
  return 1 + (words + packed - 1) / packed;
}

size_t launches(const Ragged&, const Choice&, const Device&) { return 1; }

const char* by_model(const Problem&) { return "the least predicted time"; }
const char* by_model(const Ragged& ragged) {
  if (!ragged.batch_invariant) return "the least predicted time";
  return "the least predicted time of 64 groups of 256 rows, whatever the batch, for batch_invariant";
}

const char* by_row(const Problem&) { return "this list of sizes has a row in the tables"; }
const char* by_row(const Ragged&) { return "E, N, K and about this many rows have a row in the tables"; }

template <typename Product>
std::string reason(const Product& product, const Choice& choice, const Device& device) {
  if (choice.tuned) return std::string("measured on ") + gg_gpus[device.gpu].name + ": " + by_row(product);
  return basis(*choice.artifact, device) + ": " + by_model(product);
}

bool has_outputs(const Problem& problem) { return !problem.groups.empty(); }
bool has_outputs(const Ragged& ragged) { return ragged.rows > 0 && ragged.columns > 0; }

template <typename Product>
py::list candidates(const Product& product, const Device& device) {
  py::list found;
  for (const Considered& one : considered(product, device)) {
    py::dict candidate;
    candidate["variant"] = one.artifact->name;
    candidate["predicted_us"] = one.ruled_out.empty() ? py::cast(one.predicted_us) : py::none();
    candidate["ruled_out"] = one.ruled_out.empty() ? py::none() : py::object(py::str(one.ruled_out));
    found.append(candidate);
  }
  return found;
}

template <typename Product>
py::dict explained(const Product& product, const Device& device) {
  py::dict result;
  result["device"] = device.name;
  if (!has_outputs(product)) {
    result["variant"] = py::none();
    result["reason"] = "nothing to compute: no output element";
    result["predicted_us"] = 0.0;
    result["from_ptx"] = false;
    result["launches"] = 0;
    result["candidates"] = py::list();
    return result;
  }
  const Choice choice = select(product, device);
  result["variant"] = choice.artifact->name;
  result["reason"] = reason(product, choice, device);
  result["predicted_us"] = choice.predicted_us;
  result["from_ptx"] = choice.image == ImageKind::ptx;
  result["launches"] = launches(product, choice, device);
  result["candidates"] = candidates(product, device);
  return result;
}

template <typename Product>
py::dict explained_on(const Product& product, py::handle described, DeviceType type, int ordinal) {
  if (!described.is_none()) return explained(product, described_device(described));
  if (type != DeviceType::cuda) {
    throw ValueError(
        "explain: the matrices are on the CPU, which takes the reference path; pass device= to ask about a GPU");
  }
  if (has_outputs(product)) return explained(product, device(ordinal));
  Device none{};
  none.name = "any device";
  return explained(product, none);
}

}  // namespace

py::dict explain(const ListArguments& arguments, py::handle device) {
  const Inputs inputs = check_inputs(arguments);
  const std::vector<Tensor> outputs =
      arguments.out.is_none() ? imagined_outputs(inputs) : check_outputs(snapshot(arguments.out, "out"), inputs);
  const Problem problem = make_problem(inputs.dtype, inputs.out_dtype, make_groups(inputs, outputs));
  const bool on_cpu = inputs.size() > 0 && inputs.device_type == DeviceType::cpu;
  return explained_on(problem, device, on_cpu ? DeviceType::cpu : DeviceType::cuda, inputs.device);
}

py::dict explain(const RaggedArguments& arguments, py::handle device) {
  CheckedRagged checked = check_ragged(arguments);
  finish(checked.ragged);
  return explained_on(checked.ragged, device, checked.device_type, checked.device);
}

}  // namespace gg
