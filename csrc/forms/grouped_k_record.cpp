// A product of ragged K as its kernels read it: one record in their own parameters.
#include "driver/tensor_map.hpp"
#include "forms/grouped_maps.hpp"

namespace gg {
namespace {

// K is the outer dimension of both: of A, which has M contiguous, and of B, which has N contiguous.
TensorMap map_along_k(const GroupedProblem& p, const gg_artifact& artifact, uint64_t address, int64_t contiguous,
                      int64_t k_stride) {
  return counted_from_behind(make_tensor_map(p.dtype, address, contiguous, p.k, k_stride, artifact.block_k));
}

// The matrices of all groups, and of each group's parts.
TensorMap map_of_c(const GroupedProblem& p, const gg_artifact& artifact) {
  return stacked(make_tensor_map(p.out_dtype, p.c, p.n, p.m, p.c_row, output_box_rows(artifact)),
                 p.groups * p.part_count(), p.c_group);
}

// The fields that both records have behind the matrices.
template <typename Record>
void write_k_rest(const GroupedProblem& p, Record& record) {
  record.offs = p.ragged;
  record.alpha_at = p.factors.alpha_at, record.alpha_bits = static_cast<uint32_t>(bits_of(p.factors.alpha));
  record.splits = p.part_count();
}

template <typename Record>
Record descriptors_record(const GroupedProblem& p, const gg_artifact& artifact) {
  Record record{};
  // Rows by an index are no box: the kernel reads them by their address.
  if (artifact.source != GG_SOURCE_INDEXED) {
    write_descriptor(artifact, map_along_k(p, artifact, p.a, p.m, p.a_col), record.a);
  }
  if (artifact.source != GG_SOURCE_INDEXED_B) {
    write_descriptor(artifact, map_along_k(p, artifact, p.b, p.n, p.b_row), record.b);
  }
  write_descriptor(artifact, map_of_c(p, artifact), record.c);
  write_k_rest(p, record);
  record.accumulates = p.accumulates;
  return record;
}

gg_gather_k_descriptors gathering_record(const GroupedProblem& p, const gg_artifact& artifact) {
  auto record = descriptors_record<gg_gather_k_descriptors>(p, artifact);
  const bool of_b = artifact.source == GG_SOURCE_INDEXED_B;
  const RowIndex& index = of_b ? p.index_b : p.index;
  record.index = index.data, record.index_bytes = index.bytes;
  record.gathered = of_b ? p.b : p.a, record.gathered_row = of_b ? p.b_row : p.a_col;
  record.gathered_rows = index.a_rows;
  return record;
}

template <typename Record>
Record k_pointers_record(const GroupedProblem& p) {
  Record record{};
  record.a = p.a, record.b = p.b, record.c = p.c;
  record.a_row = p.a_row, record.a_col = p.a_col;
  record.b_row = p.b_row, record.b_col = p.b_col;
  record.c_group = p.c_group, record.c_row = p.c_row, record.c_col = p.c_col;
  write_k_rest(p, record);
  return record;
}

template <typename Record>
void write_scales(const GroupedProblem& p, Record& record) {
  record.scale_a = p.scale_a, record.scale_b = p.scale_b;
  record.scale_a_row = p.scale_a_row, record.scale_a_k = p.scale_a_k;
  record.scale_b_k = p.scale_b_k, record.scale_b_n = p.scale_b_n;
  record.scale_blocks = p.scale_blocks;
}

gg_scaled_k_pointers scaled_pointers_record(const GroupedProblem& p) {
  auto record = k_pointers_record<gg_scaled_k_pointers>(p);
  write_scales(p, record);
  record.k_alignment = p.k_alignment;
  return record;
}

// Groups start at multiples of a box: K is the contiguous dimension, and nothing of it is counted from behind.
gg_scaled_k_descriptors scaled_descriptors_record(const GroupedProblem& p, const gg_artifact& artifact) {
  gg_scaled_k_descriptors record{};
  write_descriptor(artifact, make_tensor_map(p.dtype, p.a, p.k, p.m, p.a_row, artifact.block_m), record.a);
  write_descriptor(artifact, make_tensor_map(p.dtype, p.b, p.k, p.n, p.b_col, artifact.block_n), record.b);
  write_descriptor(artifact, map_of_c(p, artifact), record.c);
  write_k_rest(p, record);
  record.accumulates = p.accumulates;
  write_scales(p, record);
  return record;
}

}  // namespace

ProblemRecord grouped_k_record(const GroupedProblem& p, const gg_artifact& artifact) {
  if (artifact.scaling == GG_SCALING_BLOCK) {
    return artifact.addressing == GG_POINTERS ? words_of(scaled_pointers_record(p))
                                              : words_of(scaled_descriptors_record(p, artifact));
  }
  if (artifact.addressing == GG_POINTERS) return words_of(k_pointers_record<gg_grouped_k_pointers>(p));
  if (artifact.source != GG_SOURCE_ROWS) return words_of(gathering_record(p, artifact));
  return words_of(descriptors_record<gg_grouped_k_descriptors>(p, artifact));
}

}  // namespace gg
