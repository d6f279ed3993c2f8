// A product of ragged rows as its kernels read it: one record in their own parameters.
#include "arrays/dtype.hpp"
#include "driver/tensor_map.hpp"
#include "forms/grouped_maps.hpp"
#include "forms/grouped_problem.hpp"

namespace gg {
namespace {

// A fitted tile takes as many boxes as have rows of it.
TensorMap map_of_a(const GroupedProblem& p, const gg_artifact& artifact) {
  const int box_rows = artifact.row_step ? output_box_rows(artifact) : artifact.block_m;
  return counted_from_behind(make_tensor_map(p.dtype, p.a, p.k, p.m, p.a_row, box_rows));
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

template <typename Record>
Record descriptors_record(const GroupedProblem& p, const gg_artifact& artifact) {
  Record record{};
  // Rows by an index are no box: the kernel reads them by their address.
  if (artifact.source == GG_SOURCE_ROWS) write_descriptor(artifact, map_of_a(p, artifact), record.a);
  const bool has_halves =
      artifact.epilogue == GG_GATED || artifact.epilogue == GG_GATED_KEPT || artifact.epilogue == GG_GATED_QUANTIZED;
  write_descriptor(artifact, has_halves ? map_of_halves(p, artifact) : map_of_b(p, artifact), record.b);
  write_descriptor(artifact, map_of_c(p, artifact), record.c);
  write_rest(p, record);
  return record;
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

// The kernel finds up's scales of B behind gate's, or before them, by N and the order.
gg_quantized_descriptors quantized_descriptors_record(const GroupedProblem& p, const gg_artifact& artifact) {
  auto record = with_scale_strides(p, gated_descriptors_record<gg_quantized_descriptors>(p, artifact));
  record.out_scales = p.scale_c, record.out_scale_row = p.scale_c_row, record.out_scale_k = p.scale_c_k;
  return record;
}

// Gate's half of a pre-activation or of its gradient, or up's.
TensorMap map_of_half(const GroupedProblem& p, const gg_artifact& artifact, uint64_t address, int64_t row,
                      bool is_second) {
  const auto offset = static_cast<uint64_t>(is_second ? p.n * element_bytes(p.out_dtype) : 0);
  return counted_from_behind(make_tensor_map(p.out_dtype, address + offset, p.n, p.m, row, output_box_rows(artifact)));
}

gg_gradient_descriptors gradient_descriptors_record(const GroupedProblem& p, const gg_artifact& artifact) {
  const GradientRows& g = *p.gradient;
  const bool up_first = g.activation.order == GG_UP_FIRST;
  auto record = gated_descriptors_record<gg_gradient_descriptors>(p, artifact);
  write_descriptor(artifact, map_of_half(p, artifact, g.z, g.z_row, up_first), record.z);
  write_descriptor(artifact, map_of_half(p, artifact, g.z, g.z_row, !up_first), record.z_up);
  write_descriptor(artifact, map_of_half(p, artifact, g.dz, g.dz_row, up_first), record.dz);
  write_descriptor(artifact, map_of_half(p, artifact, g.dz, g.dz_row, !up_first), record.dz_up);
  record.activation = g.activation.word();
  record.slot = g.slot, record.weights = g.weights, record.entries = g.entries;
  record.weight_kind = weight_kind(g.weight_dtype),
  record.factor_bits = static_cast<uint32_t>(bits_of(static_cast<float>(g.scale)));
  record.writes_h = g.h != 0;
  record.row_sums = g.row_sums;
  return record;
}

}  // namespace

ProblemRecord grouped_record(const GroupedProblem& p, const gg_artifact& artifact) {
  const bool is_plain = artifact.epilogue == GG_LINEAR && artifact.source == GG_SOURCE_ROWS;
  if (artifact.epilogue == GG_GATED_KEPT) return words_of(kept_descriptors_record(p, artifact));
  if (artifact.epilogue == GG_GATED_QUANTIZED) return words_of(quantized_descriptors_record(p, artifact));
  if (has_scale_strides(artifact) && artifact.source == GG_SOURCE_INDEXED) {
    return words_of(with_scale_strides(p, gated_descriptors_record<gg_gathered_scaled_descriptors>(p, artifact)));
  }
  if (has_scale_strides(artifact)) {
    return artifact.addressing == GG_HOST_DESCRIPTORS
               ? words_of(with_scale_strides(p, descriptors_record<gg_scaled_descriptors>(p, artifact)))
               : words_of(with_scale_strides(p, pointers_record<gg_scaled_pointers>(p)));
  }
  if (artifact.epilogue == GG_GATED_GRADIENT) return words_of(gradient_descriptors_record(p, artifact));
  if (artifact.addressing == GG_HOST_DESCRIPTORS && !is_plain) {
    return words_of(gated_descriptors_record<gg_gated_descriptors>(p, artifact));
  }
  if (artifact.addressing == GG_HOST_DESCRIPTORS) {
    return words_of(descriptors_record<gg_grouped_descriptors>(p, artifact));
  }
  if (artifact.epilogue == GG_GATED) return words_of(gated_pointers_record<gg_gated_pointers>(p));
  return words_of(pointers_record<gg_grouped_pointers>(p));
}

}  // namespace gg
