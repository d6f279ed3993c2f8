#include "launch/quantized_experts.hpp"

#include <optional>

#include "forms/checks.hpp"
#include "forms/guarantees.hpp"
#include "launch/experts_fields.hpp"
#include "select/cost.hpp"
#include "select/select.hpp"

namespace gg {
namespace {

// What the launches up to the down projection are given.
struct Way {
  const ExpertsRows* rows;  // where all of it lies
  QuantizeRows x;           // before the up projection
  GroupedProblem up;
  QuantizeRows h;         // what the down projection reads
  bool activates = true;  // whether a launch of its own makes h of the up projection's sums
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

// The way of rows by the index, in the order of the product, which reads them as they lie.
Way in_order(const CheckedExperts& layer, int64_t first, const RouteSlots& slots, uint64_t workspace) {
  const ExpertsRows& rows = layer.memory.with_sums;
  Way way{&rows,
          tokens_of(layer, first, slots.entries(), workspace, rows),
          {},
          input_of_down(layer, slots, workspace, rows)};
  QuantizeRows& x = way.x;
  x.ends = slots.ends, x.groups = slots.groups;
  x.index = slots.token, x.x_rows = slots.tokens;
  if (layer.weights_on_input) {
    x.row_weights = slot_address(layer.weights, first), x.weight_kind = weight_kind(layer.weights.dtype);
    x.weight_index = slots.slot;
  }
  set_product(way.up, layer, layer.w1, layer.b1, slots);
  way.up.c = way.h.x, way.up.c_row = way.h.x_row;
  set_scales(way.up, x, layer.w1_scale);
  return way;
}

// Each token once; the product picks rows by the index.
Way picked(const CheckedExperts& layer, int64_t first, const RouteSlots& slots, uint64_t workspace, Way way) {
  way.x = tokens_of(layer, first, slots.tokens, workspace, *way.rows);
  way.x.overlaps = true;
  set_scales_by_row(way.x);
  set_scales(way.up, way.x, layer.w1_scale);
  way.up.index = {slots.token, 4, slots.tokens};
  return way;
}

// The product activates and quantizes too. It writes h while it reads x.
Way fused(const CheckedExperts& layer, const RouteSlots& slots, uint64_t workspace, Way way) {
  const ExpertsRows& rows = layer.memory.without_sums;
  way.rows = &rows, way.activates = false;
  way.x.out = workspace + rows.gathered, way.x.scales = workspace + rows.gathered_scales;
  way.h = input_of_down(layer, slots, workspace, rows);
  way.up.a = way.x.out, way.up.scale_a = way.x.scales;
  way.up.activation = layer.activation, way.up.out_dtype = GG_E4M3;
  way.up.c = way.h.out, way.up.c_row = way.h.out_row;
  way.up.scale_c = way.h.scales, way.up.scale_c_row = way.h.scale_row, way.up.scale_c_k = way.h.scale_col;
  return way;
}

// Of all launches up to the down projection; none where no kernel takes the up projection. The same for all batches
// where the choice is not to depend on them.
std::optional<double> predicted_us(const Way& way, const RouteSlots& slots, const Device& device) {
  const std::optional<Choice> choice = cached_choice_if_taken(way.up.fused(), device);
  if (!choice) return std::nullopt;
  QuantizeRows x = way.x, h = way.h;
  h.rows = way.up.predicted_rows();
  x.rows = x.index ? h.rows : h.rows / slots.top_k;
  double us = choice->predicted_us + choice_of(x, "fused_experts", device).predicted_us;
  if (way.activates) us += choice_of(h, "fused_experts", device).predicted_us + extra_launch_us;
  return us;
}

Way least_time(const CheckedExperts& layer, int64_t first, const RouteSlots& slots, uint64_t workspace,
               const Device& device) {
  Way best = in_order(layer, first, slots, workspace);
  if (layer.weights_on_input || !best.up.has_outputs()) return best;
  std::optional<double> least_us = predicted_us(best, slots, device);
  const auto consider = [&](const Way& way) {
    const std::optional<double> us = predicted_us(way, slots, device);
    if (us && (!least_us || *us < *least_us)) best = way, least_us = us;
  };
  const Way by_index = picked(layer, first, slots, workspace, best);
  consider(by_index);
  const bool may_fuse = layer.b1.rank == 0 && layer.activation.quantizable(by_index.up.n);
  if (may_fuse) consider(fused(layer, slots, workspace, by_index));
  return best;
}

}  // namespace

void set_quantized_products(ExpertsChunk& chunk, const CheckedExperts& layer, int64_t first, uint64_t workspace,
                            const Device& device) {
  const Way way = least_time(layer, first, chunk.slots, workspace, device);
  chunk.up_input = way.x, chunk.up = way.up;
  if (way.activates) chunk.down_input = way.h;
  GroupedProblem& down = chunk.down = {};
  set_product(down, layer, layer.w2, layer.b2, chunk.slots);
  set_scales(down, way.h, layer.w2_scale);
  down.c = workspace + way.rows->down, down.c_row = layer.memory.hidden_row;
  for (PartsOptions* options : {&chunk.up_options, &chunk.down_options}) {
    options->ends_rise = true, options->division = Division{}, options->memory = PartsMemory{};
  }
  chunk.workspace_bytes = way.rows->end;
}

}  // namespace gg
