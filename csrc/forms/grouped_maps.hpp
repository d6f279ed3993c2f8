// What the records of grouped products share: tensor maps, and fields that have one meaning in all of them.
#pragma once

#include <cstdint>
#include <utility>

#include "abi/artifact.h"
#include "arrays/dtype.hpp"
#include "driver/tensor_map.hpp"
#include "forms/grouped_problem.hpp"

namespace gg {

// A matrix whose second dimension is ragged, as a map of four dimensions. That dimension is counted from behind: the
// hardware reads zeros and writes nothing past the end of a dimension, so a group's end is put there.
TensorMap counted_from_behind(TensorMap rows);

// A stack of matrices: one more dimension, `count` steps of `stride` elements.
TensorMap stacked(TensorMap matrix, int64_t count, int64_t stride);

// B[g] of a stack.
TensorMap map_of_b(const GroupedProblem& p, const gg_artifact& artifact);

// In elements: from a column of gate to that of up, and to the next of its own.
struct Halves {
  int64_t apart, step;
};

Halves halves_of_b(const GroupedProblem& p);

// Gate and up of B as two matrices of each group: [K, I, 2, groups] or [I, K, 2, groups], however their columns lie.
TensorMap map_of_halves(const GroupedProblem& p, const gg_artifact& artifact);

// The fields that both records have behind the matrices.
template <typename Record>
void write_rest(const GroupedProblem& p, Record& record) {
  record.offs = p.ragged, record.bias = p.bias;
  record.bias_row = p.bias_row, record.bias_col = p.bias_col;
  record.scale_a = p.scale_a, record.scale_b = p.scale_b, record.scale_b_step = p.scale_b_step;
  record.skips_rest = p.skips_rest;
}

template <typename Record>
Record with_scale_strides(const GroupedProblem& p, Record record) {
  record.scale_a_row = p.scale_a_row, record.scale_a_k = p.scale_a_k;
  record.scale_b_n = p.scale_b_n, record.scale_b_k = p.scale_b_k;
  return record;
}

// What records of gated products and of those with an index have besides.
template <typename Record>
void write_gated(const GroupedProblem& p, Record& record) {
  // The order of gate and up means nothing where there are none.
  const gg_gate_order order = p.activation.gated() ? p.activation.order : GG_GATE_FIRST;
  const bool in_turns = order == GG_INTERLEAVED, up_first = order == GG_UP_FIRST;
  if (p.bias) {
    const int64_t apart = in_turns ? p.bias_col : p.n / 2 * p.bias_col;
    record.bias_up = p.bias + static_cast<uint64_t>(apart) * static_cast<uint64_t>(element_bytes(p.out_dtype));
    if (up_first) std::swap(record.bias, record.bias_up);
    if (in_turns) record.bias_col = 2 * p.bias_col;
  }
  record.activation = p.activation.word(), record.up_first = up_first;
  record.index = p.index.data, record.index_bytes = p.index.bytes, record.a_rows = p.rows_of_a();
}

// The record of a kernel that takes pointers; the strides of the groups of A and C are left out.
template <typename Record>
Record pointers_record(const GroupedProblem& p) {
  Record record{};
  record.a = p.a, record.b = p.b, record.c = p.c;
  record.a_row = p.a_row, record.a_col = p.a_col;
  record.b_group = p.b_group, record.b_row = p.b_row, record.b_col = p.b_col;
  record.c_row = p.c_row, record.c_col = p.c_col;
  write_rest(p, record);
  return record;
}

// The same with a gated epilogue: b and b_up are gate's and up's.
template <typename Record>
Record gated_pointers_record(const GroupedProblem& p) {
  auto record = pointers_record<Record>(p);
  write_gated(p, record);
  const Halves halves = halves_of_b(p);
  record.b_up = p.b + static_cast<uint64_t>(halves.apart) * static_cast<uint64_t>(element_bytes(p.dtype));
  record.b_col = halves.step;
  if (p.activation.order == GG_UP_FIRST) std::swap(record.b, record.b_up);
  return record;
}

}  // namespace gg
