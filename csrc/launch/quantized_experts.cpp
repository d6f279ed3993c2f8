#include "launch/quantized_experts.hpp"

#include <optional>

#include "forms/check_grouped_scales.hpp"
#include "forms/guarantees.hpp"
#include "launch/experts_fields.hpp"
#include "select/select.hpp"

namespace gg {
namespace {

// How rows of x are quantized before the up projection.
struct UpInput {
  QuantizeRows x;
  GroupedProblem up;
};

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

// Scales of rows that are picked: those of a row one behind the other, as 8 k-tiles find them in 32 bytes.
void set_scales_by_row(QuantizeRows& q) { q.scale_row = ceil_div(q.columns, scale_block), q.scale_col = 1; }

// Rows of x as they lie, from the token `first` on.
QuantizeRows tokens_of(const CheckedExperts& layer, int64_t first, int64_t rows, uint64_t workspace,
                       const ExpertsRows& to) {
  QuantizeRows x;
  x.x = row_address(layer.x, first), x.x_row = layer.x.stride[0];
  x.columns = layer.sizes.hidden, x.dtype = layer.dtype;
  set_output(x, rows, workspace + to.gathered, layer.memory.gathered_row, workspace + to.gathered_scales);
  return x;
}

// Rows by the index, in the order of the product, which reads them as they lie.
UpInput in_order(const CheckedExperts& layer, int64_t first, const RouteSlots& slots, const GroupedProblem& up,
                 uint64_t workspace, const ExpertsRows& rows) {
  UpInput input{tokens_of(layer, first, slots.entries(), workspace, rows), up};
  QuantizeRows& x = input.x;
  x.ends = slots.ends, x.groups = slots.groups;
  x.index = slots.token, x.x_rows = slots.tokens;
  if (layer.weights_on_input) {
    x.row_weights = slot_address(layer.weights, first), x.weight_kind = weight_kind(layer.weights.dtype);
    x.weight_index = slots.slot;
  }
  set_scales(input.up, x, layer.w1_scale);
  return input;
}

// Each token once; the product picks rows by the index.
UpInput picked(const CheckedExperts& layer, int64_t first, const RouteSlots& slots, const GroupedProblem& up,
               uint64_t workspace, const ExpertsRows& rows) {
  UpInput input{tokens_of(layer, first, slots.tokens, workspace, rows), up};
  input.x.overlaps = true;
  set_scales_by_row(input.x);
  set_scales(input.up, input.x, layer.w1_scale);
  input.up.index = {slots.token, 4, slots.tokens};
  return input;
}

// Of both launches. `each`: how many of the product's rows a row of x becomes. The same for all batches where the
// choice is not to depend on them.
double predicted_us(const UpInput& input, const Choice& choice, int64_t each, const Device& device) {
  QuantizeRows x = input.x;
  x.rows = input.up.predicted_rows() / each;
  return choice.predicted_us + choice_of(x, "fused_experts", device).predicted_us;
}

UpInput least_time(const CheckedExperts& layer, int64_t first, const RouteSlots& slots, const GroupedProblem& up,
                   uint64_t workspace, const ExpertsRows& rows, const Device& device) {
  UpInput ordered = in_order(layer, first, slots, up, workspace, rows);
  if (layer.weights_on_input || !up.has_outputs()) return ordered;
  UpInput by_index = picked(layer, first, slots, up, workspace, rows);
  const std::optional<Choice> choice = select_if_taken(by_index.up.fused(), device, Use::once);
  if (!choice) return ordered;
  const Choice other = cached_choice(ordered.up.fused(), device, Use::once);
  const double us = predicted_us(by_index, *choice, slots.top_k, device);
  return us < predicted_us(ordered, other, 1, device) ? by_index : ordered;
}

// What the down projection reads, in e4m3: what the activation makes of the sums.
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

}  // namespace

void set_quantized_products(ExpertsChunk& chunk, const CheckedExperts& layer, int64_t first, uint64_t workspace,
                            const Device& device) {
  const ExpertsMemory& memory = layer.memory;
  const ExpertsRows& rows = memory.with_sums;
  const RouteSlots& slots = chunk.slots;
  const QuantizeRows& h = chunk.down_input.emplace(input_of_down(layer, slots, workspace, rows));
  GroupedProblem up{};
  set_product(up, layer, layer.w1, layer.b1, slots);
  up.c = h.x, up.c_row = h.x_row;
  const UpInput input = least_time(layer, first, slots, up, workspace, rows, device);
  chunk.up_input = input.x, chunk.up = input.up;
  GroupedProblem& down = chunk.down = {};
  set_product(down, layer, layer.w2, layer.b2, slots);
  set_scales(down, h, layer.w2_scale);
  down.c = workspace + rows.down, down.c_row = memory.hidden_row;
  for (PartsOptions* options : {&chunk.up_options, &chunk.down_options}) {
    options->ends_rise = true, options->division = Division{}, options->memory = PartsMemory{};
  }
  chunk.workspace_bytes = rows.end;
}

}  // namespace gg
