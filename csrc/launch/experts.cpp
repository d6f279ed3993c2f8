#include "launch/experts.hpp"

#include <algorithm>
#include <utility>

#include "forms/guarantees.hpp"
#include "forms/overlap.hpp"
#include "launch/experts_fields.hpp"
#include "launch/quantized_experts.hpp"

namespace py = pybind11;

namespace gg {
namespace {

RouteSlots slots_of(const CheckedExperts& layer, int64_t first, int64_t tokens, uint64_t workspace) {
  const ExpertsMemory& memory = layer.memory;
  RouteSlots slots = slots_of(layer.ids, layer.expert_map, layer.sizes.experts);
  slots.ids = slot_address(layer.ids, first), slots.tokens = tokens;
  slots.ends = workspace + memory.ends, slots.token = workspace + memory.token;
  slots.slot = workspace + memory.slot, slots.inverse = workspace + memory.inverse;
  slots.counts = workspace + memory.counts;
  return slots;
}

// A row behind the last end is of a slot that was dropped: `inverse` leads to none.
void set_options(PartsOptions& options, const CheckedExperts& layer, const RouteSlots& slots, int64_t first) {
  options.ends_rise = true;
  if (!layer.weights_on_input) return;
  options.row_weights = slot_address(layer.weights, first), options.weight_kind = weight_kind(layer.weights.dtype);
  options.weight_index = slots.slot;
}

SumRows sum_of(const CheckedExperts& layer, int64_t first, const RouteSlots& slots, uint64_t y) {
  SumRows sum;
  sum.y = y, sum.y_row = layer.memory.hidden_row, sum.rows = slots.entries();
  sum.inverse = slots.inverse;
  sum.tokens = slots.tokens, sum.top_k = slots.top_k, sum.columns = layer.sizes.hidden;
  if (!layer.weights_on_input) {
    sum.weights = slot_address(layer.weights, first), sum.weight_dtype = layer.weights.dtype;
  }
  sum.added = row_address(layer.added, first), sum.added_row = layer.added.stride[0];
  sum.out = row_address(layer.out_view, first), sum.out_row = layer.out_view.stride[0];
  sum.dtype = layer.dtype, sum.scale = layer.scale;
  return sum;
}

}  // namespace

ExpertsChunk chunk_of(const CheckedExperts& layer, int64_t first, uint64_t workspace, const Device& device) {
  const ExpertsMemory& memory = layer.memory;
  const int64_t tokens = std::min(layer.chunk, layer.sizes.tokens - first);
  ExpertsChunk chunk{};
  chunk.slots = slots_of(layer, first, tokens, workspace);
  chunk.has_rows = chunk.slots.entries() > 0;
  GroupedProblem &up = chunk.up, &down = chunk.down;
  if (layer.sizes.quantized) {
    set_quantized_products(chunk, layer, first, workspace, device);
    chunk.sum = sum_of(layer, first, chunk.slots, down.c);
    return chunk;
  }
  set_product(up, layer, layer.w1, layer.b1, chunk.slots);
  up.a = row_address(layer.x, first), up.a_row = layer.x.stride[0];
  up.index = {chunk.slots.token, 4, tokens};
  up.activation = layer.activation;
  up.c = workspace + memory.without_sums.activated, up.c_row = memory.activated_row;
  // Which kernels there are does not depend on where the rows lie.
  set_options(chunk.up_options, layer, chunk.slots, first);
  const Division division = best_division(up, chunk.up_options, device);
  const ExpertsRows& rows = parts_bytes(up, division).sums > 0 ? memory.with_sums : memory.without_sums;
  chunk.workspace_bytes = rows.end;
  chunk.up_options.division = division;
  chunk.up_options.memory = PartsMemory{workspace + rows.gathered, workspace + rows.sums};
  up.c = workspace + rows.activated;
  set_product(down, layer, layer.w2, layer.b2, chunk.slots);
  down.a = up.c, down.a_row = memory.activated_row;
  down.c = workspace + rows.down, down.c_row = memory.hidden_row;
  chunk.down_options.ends_rise = true;
  chunk.sum = sum_of(layer, first, chunk.slots, down.c);
  return chunk;
}

size_t used_workspace_bytes(const CheckedExperts& layer, const Device& device) {
  if (layer.memory.bytes == 0) return 0;
  // A single token has no stride: where rows do not all start on 16 bytes, chunks of one take unlike kernels.
  if (layer.chunk == 1 && !fills_16_bytes(layer.x.stride[0], element_bytes(layer.dtype))) return layer.memory.bytes;
  const size_t bytes = chunk_of(layer, 0, imagined_workspace, device).workspace_bytes;
  // All chunks but the last are alike.
  const int64_t last = (ceil_div(layer.sizes.tokens, layer.chunk) - 1) * layer.chunk;
  return last == 0 ? bytes : std::max(bytes, chunk_of(layer, last, imagined_workspace, device).workspace_bytes);
}

ExpertsLaunches::ExpertsLaunches(const ExpertsChunk& chunk, const ExpertsPlace& to)
    : combine_(prepared(chunk.sum, "fused_experts", to.device)) {
  if (!chunk.has_rows) return;
  route_ = prepared(chunk.slots, to.device);
  add_quantize(up_input_, chunk.up_input, to.device);
  add_product(up_, chunk.up, chunk.up_options, to);
  add_quantize(down_input_, chunk.down_input, to.device);
  add_product(down_, chunk.down, chunk.down_options, to);
}

void ExpertsLaunches::add_product(std::optional<ProductParts>& product, const GroupedProblem& problem,
                                  const PartsOptions& options, const ExpertsPlace& to) {
  if (!problem.has_outputs()) return;
  product.emplace(problem, options, "", "fused_experts", to.device, to.framework, to.like, to.stream);
}

void ExpertsLaunches::add_quantize(std::optional<RepeatedLaunch>& launch, const std::optional<QuantizeRows>& rows,
                                   const Device& device) {
  if (rows && rows->columns > 0) launch.emplace(prepared(*rows, "fused_experts", device));
}

void ExpertsLaunches::run(CUstream stream) const {
  if (route_) route_->run(stream);
  if (up_input_) up_input_->run(stream);
  if (up_) up_->run(stream);
  if (down_input_) down_input_->run(stream);
  if (down_) down_->run(stream);
  combine_.run(stream);
}

std::vector<const gg_artifact*> ExpertsLaunches::artifacts() const {
  std::vector<const gg_artifact*> all;
  const auto add = [&](const std::vector<const gg_artifact*>& more) {
    all.insert(all.end(), more.begin(), more.end());
  };
  if (route_) add(route_->artifacts());
  if (up_input_) add({&up_input_->artifact()});
  if (up_) add(up_->artifacts());
  if (down_input_) add({&down_input_->artifact()});
  if (down_) add(down_->artifacts());
  add({&combine_.artifact()});
  return all;
}

void ExpertsLaunches::take_memory(std::vector<py::object>& owners) {
  for (std::optional<ProductParts>* product : {&up_, &down_}) {
    if (!*product) continue;
    for (py::object& owner : (*product)->take_memory()) owners.push_back(std::move(owner));
  }
}

}  // namespace gg
