#include "launch/experts.hpp"

#include <algorithm>

#include "arrays/dtype.hpp"
#include "forms/overlap.hpp"

namespace gg {
namespace {

// The address of row `row` of an array whose rows lie one behind the other or a stride apart; 0 where there is none.
uint64_t row_address(const Tensor& t, int64_t row) {
  if (t.rank == 0) return 0;
  return t.data + static_cast<uint64_t>(row * t.stride[0] * bytes_of(t));
}

// The rank of contiguous [tokens, k] may have any stride where it has one row, or none.
uint64_t slot_address(const Tensor& t, int64_t token) {
  return t.data + static_cast<uint64_t>(token * t.shape[1] * bytes_of(t));
}

RouteSlots slots_of(const CheckedExperts& layer, int64_t first, int64_t tokens, uint64_t workspace) {
  const ExpertsMemory& memory = layer.memory;
  RouteSlots slots;
  slots.ids = slot_address(layer.ids, first), slots.id_bytes = bytes_of(layer.ids);
  slots.tokens = tokens, slots.top_k = layer.sizes.top_k, slots.groups = layer.sizes.experts;
  slots.has_map = layer.expert_map.rank > 0;
  if (slots.has_map) {
    slots.expert_map = layer.expert_map.data, slots.map_bytes = bytes_of(layer.expert_map);
    slots.map_size = layer.expert_map.shape[0];
  }
  slots.ends = workspace + memory.ends, slots.token = workspace + memory.token;
  slots.slot = workspace + memory.slot, slots.inverse = workspace + memory.inverse;
  slots.counts = workspace + memory.counts;
  return slots;
}

// B, bias and groups of one of the products.
GroupedProblem product_of(const CheckedExperts& layer, const Tensor& w, const Tensor& bias, const RouteSlots& slots) {
  GroupedProblem p{};
  p.extents = GG_M_ENDS;
  p.dtype = p.out_dtype = layer.dtype;
  p.m = slots.entries(), p.k = w.shape[1], p.n = w.shape[2], p.groups = slots.groups;
  p.b = w.data, p.b_group = w.stride[0], p.b_row = w.stride[1], p.b_col = w.stride[2];
  if (bias.rank > 0) p.bias = bias.data, p.bias_row = bias.stride[0], p.bias_col = bias.stride[1];
  p.ragged = slots.ends;
  p.batch_invariant = layer.batch_invariant;
  p.a_col = p.c_col = 1;
  return p;
}

// A row behind the last end is of a slot that was dropped: `inverse` leads to none.
PartsOptions options_of(const CheckedExperts& layer, const RouteSlots& slots, const ExpertsRows& rows,
                        uint64_t workspace, int64_t first) {
  PartsOptions options;
  options.ends_rise = true;
  options.memory = PartsMemory{workspace + rows.gathered, workspace + rows.sums};
  if (layer.weights_on_input) {
    options.row_weights = slot_address(layer.weights, first), options.weight_kind = weight_kind(layer.weights.dtype);
    options.weight_index = slots.slot;
  }
  return options;
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

ExpertsChunk chunk_of(const CheckedExperts& layer, int64_t first, uint64_t workspace) {
  const ExpertsMemory& memory = layer.memory;
  const int64_t tokens = std::min(layer.chunk, layer.sizes.tokens - first);
  ExpertsChunk chunk{};
  chunk.slots = slots_of(layer, first, tokens, workspace);
  chunk.has_rows = chunk.slots.entries() > 0;
  GroupedProblem &up = chunk.up, &down = chunk.down;
  up = product_of(layer, layer.w1, layer.b1, chunk.slots);
  up.a = row_address(layer.x, first), up.a_row = layer.x.stride[0];
  up.index = {chunk.slots.token, 4, tokens};
  up.activation = layer.activation;
  up.c = workspace + memory.without_sums.activated, up.c_row = memory.activated_row;
  up.complete();
  const ExpertsRows& rows = parts_bytes(up).sums > 0 ? memory.with_sums : memory.without_sums;
  up.c = workspace + rows.activated;
  down = product_of(layer, layer.w2, layer.b2, chunk.slots);
  down.a = up.c, down.a_row = memory.activated_row;
  down.c = workspace + rows.down, down.c_row = memory.hidden_row;
  down.complete();
  chunk.up_options = options_of(layer, chunk.slots, rows, workspace, first);
  chunk.down_options.ends_rise = true;
  chunk.sum = sum_of(layer, first, chunk.slots, down.c);
  return chunk;
}

}  // namespace gg
