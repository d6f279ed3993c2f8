#include <string>
#include <utility>
#include <vector>

#include "api/explain.hpp"
#include "driver/described.hpp"
#include "driver/error.hpp"
#include "launch/experts.hpp"
#include "select/catalog.hpp"

namespace py = pybind11;

namespace gg {
namespace {

struct Totals {
  double us = 0;
  int64_t launches = 0;
};

// Adds a step to the list, and what it takes to the totals.
void add_step(py::list& steps, Totals& totals, const char* name, const py::list& variants, double us,
              const std::string& reason) {
  totals.us += us;
  totals.launches += static_cast<int64_t>(variants.size());
  steps.append(py::dict(py::arg("name") = name, py::arg("variants") = variants, py::arg("predicted_us") = us,
                        py::arg("reason") = reason));
}

py::list names_of(const std::vector<const gg_artifact*>& kernels) {
  py::list names;
  for (const gg_artifact* one : kernels) names.append(one->name);
  return names;
}

// Ids are read once by each launch; the last one writes three arrays of as many integers.
void add_route(py::list& steps, Totals& totals, const RouteSlots& slots, const Device& device) {
  const std::vector<const gg_artifact*> kernels = kernels_of(slots, device);
  double us = 0;
  for (size_t i = 0; i < kernels.size(); i++) {
    const int written_bytes = i + 1 == kernels.size() ? 12 : 0;
    us += moving_us(static_cast<double>(slots.entries() * (slots.id_bytes + written_bytes)), device);
  }
  add_step(steps, totals, "route", names_of(kernels), us,
           kernels.size() == 1 ? "one CTA counts all slots" : "slots are counted, then placed, by many CTAs");
}

void add_product(py::list& steps, Totals& totals, const char* name, const GroupedProblem& problem,
                 const PartsOptions& options, const Device& device) {
  if (!problem.has_outputs()) return;
  const py::dict told = explain_product(problem, options, device);
  py::list variants;
  for (const py::handle part : told["parts"]) variants.append(part["variant"]);
  add_step(steps, totals, name, variants, told["predicted_us"].cast<double>(), told["reason"].cast<std::string>());
}

void add_quantize(py::list& steps, Totals& totals, const std::optional<QuantizeRows>& rows, const Device& device) {
  if (!rows || rows->columns == 0) return;
  const MemoryChoice choice = choice_of(*rows, "explain_experts", device);
  const bool activates = rows->activation.kind != GG_ACTIVATION_NONE;
  add_step(steps, totals, activates ? "activate" : "quantize", names_of({choice.artifact}), choice.predicted_us,
           "float8_e4m3fn with a scale for each 128 of a row");
}

// Rows of all slots are read, and one is written for each token.
void add_combine(py::list& steps, Totals& totals, const SumRows& sum, const Device& device) {
  const int64_t rows = sum.rows + sum.tokens * (sum.added ? 2 : 1);
  const double bytes = 2 * static_cast<double>(rows) * static_cast<double>(sum.columns);
  add_step(steps, totals, "combine", names_of({&kernel_of(sum, device)}), moving_us(bytes, device),
           "float32 sums in the order of a token's slots");
}

py::list steps_of(const CheckedExperts& layer, int64_t first, const Device& device, Totals& totals) {
  py::list steps;
  const ExpertsChunk chunk = chunk_of(layer, first, imagined_workspace, device);
  if (chunk.has_rows) {
    add_route(steps, totals, chunk.slots, device);
    add_quantize(steps, totals, chunk.up_input, device);
    add_product(steps, totals, "up", chunk.up, chunk.up_options, device);
    add_quantize(steps, totals, chunk.down_input, device);
    add_product(steps, totals, "down", chunk.down, chunk.down_options, device);
  }
  add_combine(steps, totals, chunk.sum, device);
  return steps;
}

py::dict explained(const CheckedExperts& layer, const Device& device) {
  Totals totals;
  py::list steps;
  int64_t chunks = 0;
  if (layer.has_outputs()) {
    chunks = ceil_div(layer.sizes.tokens, layer.chunk);
    steps = steps_of(layer, 0, device, totals);
    totals.us *= static_cast<double>(chunks - 1), totals.launches *= chunks - 1;
    steps_of(layer, (chunks - 1) * layer.chunk, device, totals);
  }
  return py::dict(py::arg("device") = device.name, py::arg("steps") = steps, py::arg("chunks") = chunks,
                  py::arg("launches") = totals.launches, py::arg("predicted_us") = totals.us,
                  py::arg("workspace_bytes") = layer.memory.bytes,
                  py::arg("from_ptx") = resolve_architecture(device).from_ptx);
}

}  // namespace

py::dict explain(const ExpertsArguments& arguments, py::handle device) {
  const CheckedExperts layer = check_experts(arguments);
  if (!device.is_none()) return explained(layer, described_device(device, "explain_experts"));
  if (layer.device_type == DeviceType::cuda) return explained(layer, gg::device(layer.device));
  throw ValueError(
      "explain_experts: the arrays are on the CPU, which takes the reference path; pass device= to ask about a GPU");
}

}  // namespace gg
