#include "launch/quantized_experts.hpp"

#include <algorithm>
#include <array>

#include "forms/guarantees.hpp"
#include "launch/experts_fields.hpp"
#include "select/catalog.hpp"
#include "select/cost.hpp"
#include "select/select.hpp"

namespace gg {
namespace {

enum class Way { by_parts, fused, gathered };

// Scales of blocks: of A as `quantize` writes them, of B as the caller's lie.
void set_scales(GroupedProblem& p, const QuantizeRows& a, const Tensor& of_b) {
  p.dtype = GG_E4M3, p.scaling = GG_SCALING_BLOCK;
  p.a = a.out, p.a_row = a.out_row;
  p.scale_a = a.scales, p.scale_a_row = a.scale_row, p.scale_a_k = a.scale_col;
  p.scale_b = of_b.data, p.scale_b_step = of_b.stride[0], p.scale_b_n = of_b.stride[1], p.scale_b_k = of_b.stride[2];
}

// Where e4m3 rows and their scales go: those of 128 columns one behind the other, as a tile's rows are read together.
void set_output(QuantizeRows& q, int64_t rows, uint64_t out, int64_t out_row, uint64_t scales) {
  q.rows = rows;
  q.out = out, q.out_row = out_row;
  q.scales = scales, q.scale_row = 1, q.scale_col = rows;
}

// Rows of x in e4m3: in the order of the product, or as they lie.
QuantizeRows input_of_up(const CheckedExperts& layer, int64_t first, const RouteSlots& slots, uint64_t workspace,
                         const ExpertsRows& rows, Way way) {
  QuantizeRows x;
  x.x = row_address(layer.x, first), x.x_row = layer.x.stride[0];
  x.columns = layer.sizes.hidden, x.dtype = layer.dtype;
  const int64_t count = way == Way::gathered ? slots.tokens : slots.entries();
  set_output(x, count, workspace + rows.gathered, layer.memory.gathered_row, workspace + rows.gathered_scales);
  if (way == Way::gathered) return x;
  x.ends = slots.ends, x.groups = slots.groups;
  x.index = slots.token, x.x_rows = slots.tokens;
  if (!layer.weights_on_input) return x;
  x.row_weights = slot_address(layer.weights, first), x.weight_kind = weight_kind(layer.weights.dtype);
  x.weight_index = slots.slot;
  return x;
}

// What the down projection reads, in e4m3: what the activation makes of the sums, if a launch of its own does that.
QuantizeRows input_of_down(const CheckedExperts& layer, const RouteSlots& slots, uint64_t workspace,
                           const ExpertsRows& rows) {
  QuantizeRows h;
  h.x = workspace + rows.sums, h.x_row = layer.memory.sums_row;
  h.columns = layer.sizes.intermediate, h.dtype = layer.dtype;
  h.activation = layer.activation;
  h.ends = slots.ends, h.groups = slots.groups;
  set_output(h, slots.entries(), workspace + rows.activated, layer.memory.activated_row,
             workspace + rows.activated_scales);
  return h;
}

void set_products(ExpertsChunk& chunk, const CheckedExperts& layer, int64_t first, uint64_t workspace, Way way) {
  const ExpertsMemory& memory = layer.memory;
  const ExpertsRows& rows = way == Way::by_parts ? memory.with_sums : memory.without_sums;
  const RouteSlots& slots = chunk.slots;
  const QuantizeRows& x = chunk.up_input.emplace(input_of_up(layer, first, slots, workspace, rows, way));
  const QuantizeRows h = input_of_down(layer, slots, workspace, rows);
  GroupedProblem& up = chunk.up = {};
  set_product(up, layer, layer.w1, layer.b1, slots);
  set_scales(up, x, layer.w1_scale);
  chunk.down_input.reset();
  if (way == Way::by_parts) {
    up.c = h.x, up.c_row = h.x_row;
    chunk.down_input = h;
  } else {
    up.activation = layer.activation, up.out_dtype = GG_E4M3;
    up.c = h.out, up.c_row = h.out_row;
    up.scale_c = h.scales, up.scale_c_row = h.scale_row, up.scale_c_k = h.scale_col;
    if (way == Way::gathered) up.index = {slots.token, 4, slots.tokens};
  }
  GroupedProblem& down = chunk.down = {};
  set_product(down, layer, layer.w2, layer.b2, slots);
  set_scales(down, h, layer.w2_scale);
  down.c = workspace + rows.down, down.c_row = memory.hidden_row;
  for (PartsOptions* options : {&chunk.up_options, &chunk.down_options}) {
    options->ends_rise = true, options->division = Division{}, options->memory = PartsMemory{};
  }
  chunk.workspace_bytes = rows.end;
}

// Of a launch that quantizes, if there is one, whatever the batch where the choice is not to depend on it.
double quantize_us(const std::optional<QuantizeRows>& input, const ExpertsChunk& chunk, const Device& device) {
  if (!input) return 0;
  QuantizeRows rows = *input;
  const int64_t of_each = std::max<int64_t>(chunk.slots.entries() / std::max<int64_t>(rows.rows, 1), 1);
  rows.rows = chunk.up.predicted_rows() / of_each;
  return choice_of(rows, "fused_experts", device).predicted_us + extra_launch_us;
}

// Of all before the down projection; none where no kernel takes the product.
std::optional<double> predicted_us(const ExpertsChunk& chunk, const Device& device) {
  const Parts parts = parts_of(chunk.up, Division{}, imagined_memory(), chunk.up_options);
  const std::optional<Choice> choice = select_if_taken(parts.product, device, Use::once);
  if (!choice) return std::nullopt;
  return choice->predicted_us + quantize_us(chunk.up_input, chunk, device) +
         quantize_us(chunk.down_input, chunk, device);
}

Way least_time(const ExpertsChunk& slots, const CheckedExperts& layer, uint64_t workspace, const Device& device) {
  Way best = Way::by_parts;
  std::optional<double> best_us;
  for (const Way way : {Way::by_parts, Way::fused, Way::gathered}) {
    if (way == Way::gathered && layer.weights_on_input) continue;
    ExpertsChunk chunk{};
    chunk.slots = slots.slots;
    set_products(chunk, layer, 0, workspace, way);
    const std::optional<double> us = predicted_us(chunk, device);
    if (us && (!best_us || *us < *best_us)) best = way, best_us = us;
  }
  return best;
}

// All that a way depends on, besides the device.
using WayKey = std::array<uint64_t, 14>;

WayKey key_of(const CheckedExperts& layer, const RouteSlots& slots) {
  const auto word = [](auto value) { return static_cast<uint64_t>(value); };
  const uint64_t kinds = word(layer.dtype) << 24 | word(layer.activation.kind) << 16 |
                         word(layer.activation.order) << 8 | word(layer.weights_on_input) << 1 |
                         word(layer.batch_invariant);
  return {word(slots.tokens),
          word(slots.top_k),
          word(slots.groups),
          word(layer.sizes.hidden),
          word(layer.sizes.up_columns),
          word(layer.sizes.intermediate),
          kinds,
          layer.w1.data & 15,
          word(layer.w1.stride[0]),
          word(layer.w1.stride[1]),
          word(layer.w1.stride[2]),
          layer.x.data & 15,
          word(layer.x.stride[0]),
          word(layer.workspace.rank)};
}

Way way_of(const ExpertsChunk& slots, const CheckedExperts& layer, uint64_t workspace, const Device& device) {
  struct Cached {
    WayKey key{};
    int device = -1;
    Way way;
  };
  thread_local std::array<Cached, 16> ways;
  const bool has_choice = layer.activation.quantizable(layer.sizes.up_columns) && layer.b1.rank == 0 &&
                          layer.sizes.hidden > 0 && layer.sizes.intermediate > 0 && slots.has_rows;
  if (!has_choice || catalog(device).others[GG_QUANTIZE].empty()) return Way::by_parts;
  if (device.ordinal < 0) return least_time(slots, layer, workspace, device);  // one that was only described
  const WayKey key = key_of(layer, slots.slots);
  uint64_t mixed = 0;
  for (const uint64_t word : key) mixed = (mixed ^ word) * 0x9e3779b97f4a7c15ull;
  Cached& cached = ways[(mixed >> 32) % ways.size()];
  if (cached.device != device.ordinal || cached.key != key) {
    cached = {key, device.ordinal, least_time(slots, layer, workspace, device)};
  }
  return cached.way;
}

}  // namespace

void set_quantized_products(ExpertsChunk& chunk, const CheckedExperts& layer, int64_t first, uint64_t workspace,
                            const Device& device) {
  set_products(chunk, layer, first, workspace, way_of(chunk, layer, workspace, device));
}

}  // namespace gg
