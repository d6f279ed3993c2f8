#include "launch/quantized_experts.hpp"

#include "launch/experts_fields.hpp"

namespace gg {
namespace {

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

// Rows of x in e4m3, in the order of the product.
QuantizeRows input_of_up(const CheckedExperts& layer, int64_t first, const RouteSlots& slots, uint64_t workspace,
                         const ExpertsRows& rows) {
  QuantizeRows x;
  x.x = row_address(layer.x, first), x.x_row = layer.x.stride[0];
  x.columns = layer.sizes.hidden, x.dtype = layer.dtype;
  set_output(x, slots.entries(), workspace + rows.gathered, layer.memory.gathered_row,
             workspace + rows.gathered_scales);
  x.ends = slots.ends, x.groups = slots.groups;
  x.index = slots.token, x.x_rows = slots.tokens;
  if (!layer.weights_on_input) return x;
  x.row_weights = slot_address(layer.weights, first), x.weight_kind = weight_kind(layer.weights.dtype);
  x.weight_index = slots.slot;
  return x;
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

void set_quantized_products(ExpertsChunk& chunk, const CheckedExperts& layer, int64_t first, uint64_t workspace) {
  const ExpertsMemory& memory = layer.memory;
  const ExpertsRows& rows = memory.with_sums;
  const RouteSlots& slots = chunk.slots;
  const QuantizeRows& x = chunk.up_input.emplace(input_of_up(layer, first, slots, workspace, rows));
  const QuantizeRows& h = chunk.down_input.emplace(input_of_down(layer, slots, workspace, rows));
  GroupedProblem& up = chunk.up = {};
  set_product(up, layer, layer.w1, layer.b1, slots);
  set_scales(up, x, layer.w1_scale);
  up.c = h.x, up.c_row = h.x_row;
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
