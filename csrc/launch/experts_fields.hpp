// Fields that the launches of a layer of experts take from its arrays.
#pragma once

#include "forms/check_experts.hpp"
#include "forms/overlap.hpp"
#include "launch/route.hpp"

namespace gg {

// The address of row `row` of an array whose rows lie one behind the other or a stride apart; 0 where there is none.
inline uint64_t row_address(const Tensor& t, int64_t row) {
  if (t.rank == 0) return 0;
  return t.data + static_cast<uint64_t>(row * t.stride[0] * bytes_of(t));
}

// The rank of contiguous [tokens, k] may have any stride where it has one row, or none.
inline uint64_t slot_address(const Tensor& t, int64_t token) {
  return t.data + static_cast<uint64_t>(token * t.shape[1] * bytes_of(t));
}

// Sizes, B, bias and groups of one of the products.
inline void set_product(GroupedProblem& p, const CheckedExperts& layer, const Tensor& w, const Tensor& bias,
                        const RouteSlots& slots) {
  p.extents = GG_M_ENDS;
  p.dtype = p.out_dtype = layer.dtype;
  p.m = slots.entries(), p.k = w.shape[1], p.n = w.shape[2], p.groups = slots.groups;
  p.b = w.data, p.b_group = w.stride[0], p.b_row = w.stride[1], p.b_col = w.stride[2];
  if (bias.rank > 0) p.bias = bias.data, p.bias_row = bias.stride[0], p.bias_col = bias.stride[1];
  p.ragged = slots.ends;
  p.batch_invariant = layer.batch_invariant;
  p.a_col = p.c_col = 1;
}

}  // namespace gg
