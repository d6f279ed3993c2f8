// A product of stacks as its kernels read it: one record in their own parameters.
#include "driver/tensor_map.hpp"
#include "forms/grouped_maps.hpp"
#include "forms/grouped_problem.hpp"

namespace gg {
namespace {

// Rows from a group's count on are read as zeros. With rows contiguous a box cannot end at any of them: all are read.
TensorMap map_of_a(const GroupedProblem& p, const gg_artifact& artifact) {
  const TensorMap a = a_by_columns(artifact)
                          ? make_tensor_map(p.dtype, p.a, p.m, p.k, p.a_col, artifact.block_k)
                          : counted_from_behind(make_tensor_map(p.dtype, p.a, p.k, p.m, p.a_row, artifact.block_m));
  return stacked(a, p.groups, p.a_group);
}

// Rows from a group's count on are not written.
TensorMap map_of_c(const GroupedProblem& p, const gg_artifact& artifact) {
  const TensorMap c = make_tensor_map(p.out_dtype, p.c, p.output_columns(), p.m, p.c_row, output_box_rows(artifact));
  return stacked(counted_from_behind(c), p.groups, p.c_group);
}

template <typename Record>
Record descriptors_record(const GroupedProblem& p, const gg_artifact& artifact) {
  Record record{};
  const bool has_halves = artifact.epilogue == GG_GATED;
  write_descriptor(artifact, map_of_a(p, artifact), record.a);
  write_descriptor(artifact, has_halves ? map_of_halves(p, artifact) : map_of_b(p, artifact), record.b);
  write_descriptor(artifact, map_of_c(p, artifact), record.c);
  write_rest(p, record);
  return record;
}

template <typename Record>
Record stack_pointers(const GroupedProblem& p) {
  Record record{};
  record.a = p.a, record.b = p.b, record.c = p.c;
  record.a_group = p.a_group, record.a_row = p.a_row, record.a_col = p.a_col;
  record.b_group = p.b_group, record.b_row = p.b_row, record.b_col = p.b_col;
  record.c_group = p.c_group, record.c_row = p.c_row, record.c_col = p.c_col;
  record.counts = p.ragged, record.bias = p.bias;
  record.bias_row = p.bias_row, record.bias_col = p.bias_col;
  record.scale_a = p.scale_a, record.scale_b = p.scale_b, record.scale_b_step = p.scale_b_step;
  return record;
}

template <typename Record>
ProblemRecord scaled(const GroupedProblem& p, Record record) {
  record.scale_a_group = p.scale_a_group;
  return words_of(with_scale_strides(p, record));
}

}  // namespace

ProblemRecord stack_record(const GroupedProblem& p, const gg_artifact& artifact) {
  const bool is_described = artifact.addressing == GG_HOST_DESCRIPTORS;
  if (has_scale_strides(artifact)) {
    return is_described ? scaled(p, descriptors_record<gg_scaled_stack_descriptors>(p, artifact))
                        : scaled(p, stack_pointers<gg_scaled_stack_pointers>(p));
  }
  if (!is_described) return words_of(stack_pointers<gg_stack_pointers>(p));
  if (artifact.epilogue == GG_LINEAR) return words_of(descriptors_record<gg_grouped_descriptors>(p, artifact));
  auto record = descriptors_record<gg_gated_descriptors>(p, artifact);
  write_gated(p, record);
  return words_of(record);
}

}  // namespace gg
