// A grouped product as its kernels read it: one record in their own parameters.
#include <utility>

#include "arrays/dtype.hpp"
#include "driver/tensor_map.hpp"
#include "forms/grouped_problem.hpp"

namespace gg {
namespace {

// Rows are counted from behind: the hardware reads zeros and writes nothing past the end of a dimension, so a group's
// end is put there. Row r of a group with `size` rows that end at row `stop` is row last_row - size + r of the second
// dimension; two more lead from there to row stop - size + r of memory: `stop` steps of a row, and last_row steps of
// 2^34 elements less a row, which take last_row rows away again, as addresses are taken modulo 2^64.
constexpr uint64_t last_row = uint64_t{1} << 30, any_row = 0x7fff0000;
constexpr uint64_t round_trip = uint64_t{1} << 34;

TensorMap counted_from_behind(TensorMap rows) {
  rows.rank = 4;
  rows.sizes[1] = last_row;
  rows.sizes[2] = rows.sizes[3] = any_row;
  rows.byte_strides[1] = round_trip * static_cast<uint64_t>(element_bytes(rows.dtype)) - rows.byte_strides[0];
  rows.byte_strides[2] = rows.byte_strides[0];
  rows.box[2] = rows.box[3] = 1;
  return rows;
}

TensorMap map_of_a(const GroupedProblem& p, const gg_artifact& artifact) {
  return counted_from_behind(make_tensor_map(p.dtype, p.a, p.k, p.m, p.a_row, artifact.block_m));
}

TensorMap map_of_b(const GroupedProblem& p, const gg_artifact& artifact) {
  TensorMap b = b_by_columns(artifact) ? make_tensor_map(p.dtype, p.b, p.k, p.n, p.b_col, artifact.block_n)
                                       : make_tensor_map(p.dtype, p.b, p.n, p.k, p.b_row, artifact.block_k);
  b.rank = 3;
  b.sizes[2] = static_cast<uint64_t>(p.groups);
  b.byte_strides[1] = static_cast<uint64_t>(p.b_group) * static_cast<uint64_t>(element_bytes(p.dtype));
  b.box[2] = 1;
  return b;
}

// In elements: from a column of gate to that of up, and to the next of its own.
struct Halves {
  int64_t apart, step;
};

Halves halves_of_b(const GroupedProblem& p) {
  if (p.activation.order == GG_INTERLEAVED) return {p.b_col, 2 * p.b_col};
  return {p.n / 2 * p.b_col, p.b_col};
}

// Gate and up as two matrices of each group: [K, I, 2, groups] or [I, K, 2, groups], however their columns lie.
TensorMap map_of_halves(const GroupedProblem& p, const gg_artifact& artifact) {
  const auto bytes = static_cast<uint64_t>(element_bytes(p.dtype));
  const int64_t columns = p.n / 2;
  const Halves halves = halves_of_b(p);
  TensorMap b = b_by_columns(artifact) ? make_tensor_map(p.dtype, p.b, p.k, columns, halves.step, artifact.block_n / 2)
                                       : make_tensor_map(p.dtype, p.b, columns, p.k, p.b_row, artifact.block_k);
  b.rank = 4;
  b.sizes[2] = 2, b.sizes[3] = static_cast<uint64_t>(p.groups);
  b.byte_strides[1] = static_cast<uint64_t>(halves.apart) * bytes;
  b.byte_strides[2] = static_cast<uint64_t>(p.b_group) * bytes;
  b.box[2] = b.box[3] = 1;
  return b;
}

TensorMap map_of_c(const GroupedProblem& p, const gg_artifact& artifact) {
  return counted_from_behind(
      make_tensor_map(p.out_dtype, p.c, p.output_columns(), p.m, p.c_row, output_box_rows(artifact)));
}

// Gate's half of the pre-activation, or up's.
TensorMap map_of_kept(const GroupedProblem& p, const gg_artifact& artifact, bool is_second) {
  const int64_t columns = p.n / 2;
  const auto offset = static_cast<uint64_t>(is_second ? columns * element_bytes(p.out_dtype) : 0);
  return counted_from_behind(make_tensor_map(p.out_dtype, p.activation.kept + offset, columns, p.m,
                                             p.activation.kept_row, output_box_rows(artifact)));
}

// The fields that both records have behind the matrices.
template <typename Record>
void write_rest(const GroupedProblem& p, Record& record) {
  record.offs = p.ragged, record.bias = p.bias;
  record.bias_row = p.bias_row, record.bias_col = p.bias_col;
  record.scale_a = p.scale_a, record.scale_b = p.scale_b, record.scale_b_step = p.scale_b_step;
  record.skips_rest = p.skips_rest;
}

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

template <typename Record>
Record descriptors_record(const GroupedProblem& p, const gg_artifact& artifact) {
  Record record{};
  // Rows by an index are no box: the kernel reads them by their address.
  if (artifact.source == GG_SOURCE_ROWS) write_descriptor(artifact, map_of_a(p, artifact), record.a);
  const bool has_halves = artifact.epilogue == GG_GATED || artifact.epilogue == GG_GATED_KEPT;
  write_descriptor(artifact, has_halves ? map_of_halves(p, artifact) : map_of_b(p, artifact), record.b);
  write_descriptor(artifact, map_of_c(p, artifact), record.c);
  write_rest(p, record);
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
  record.activation = p.activation.kind, record.up_first = up_first;
  record.index = p.index.data, record.index_bytes = p.index.bytes, record.a_rows = p.rows_of_a();
}

template <typename Record>
Record gated_descriptors_record(const GroupedProblem& p, const gg_artifact& artifact) {
  auto record = descriptors_record<Record>(p, artifact);
  write_gated(p, record);
  record.a_address = p.a, record.a_row = p.a_row;
  return record;
}

gg_kept_descriptors kept_descriptors_record(const GroupedProblem& p, const gg_artifact& artifact) {
  auto record = gated_descriptors_record<gg_kept_descriptors>(p, artifact);
  const bool up_first = p.activation.order == GG_UP_FIRST;
  write_descriptor(artifact, map_of_kept(p, artifact, up_first), record.kept);
  write_descriptor(artifact, map_of_kept(p, artifact, !up_first), record.kept_up);
  return record;
}

gg_gated_pointers gated_pointers_record(const GroupedProblem& p) {
  auto record = pointers_record<gg_gated_pointers>(p);
  write_gated(p, record);
  const Halves halves = halves_of_b(p);
  record.b_up = p.b + static_cast<uint64_t>(halves.apart) * static_cast<uint64_t>(element_bytes(p.dtype));
  record.b_col = halves.step;
  if (p.activation.order == GG_UP_FIRST) std::swap(record.b, record.b_up);
  return record;
}

}  // namespace

void GroupedProblem::write_sizes(gg_arguments& arguments) const {
  arguments.groups = static_cast<int32_t>(groups);
  arguments.rows = static_cast<int32_t>(m);
  arguments.columns = static_cast<int32_t>(n);
  arguments.depth = static_cast<int32_t>(k);
}

ProblemRecord GroupedProblem::write_record(const gg_artifact& artifact) const {
  const bool is_plain = artifact.epilogue == GG_LINEAR && artifact.source == GG_SOURCE_ROWS;
  if (artifact.epilogue == GG_GATED_KEPT) return words_of(kept_descriptors_record(*this, artifact));
  if (artifact.addressing == GG_HOST_DESCRIPTORS && !is_plain) {
    return words_of(gated_descriptors_record<gg_gated_descriptors>(*this, artifact));
  }
  if (artifact.addressing == GG_HOST_DESCRIPTORS) {
    return words_of(descriptors_record<gg_grouped_descriptors>(*this, artifact));
  }
  if (artifact.epilogue == GG_GATED) return words_of(gated_pointers_record(*this));
  return words_of(pointers_record<gg_grouped_pointers>(*this));
}

}  // namespace gg
