// A product of ragged rows as its kernels read it: one record in their own parameters.
#include "arrays/dtype.hpp"
#include "driver/tensor_map.hpp"
#include "forms/grouped_maps.hpp"
#include "forms/grouped_problem.hpp"

namespace gg {
namespace {

TensorMap map_of_a(const GroupedProblem& p, const gg_artifact& artifact) {
  return counted_from_behind(make_tensor_map(p.dtype, p.a, p.k, p.m, p.a_row, artifact.block_m));
}

TensorMap map_of_c(const GroupedProblem& p, const gg_artifact& artifact) {
  return counted_from_behind(
      make_tensor_map(p.out_dtype, p.c, p.output_columns(), p.m, p.c_row, output_box_rows(artifact)));
}

template <typename Record>
Record descriptors_record(const GroupedProblem& p, const gg_artifact& artifact) {
  Record record{};
  // Rows by an index are no box: the kernel reads them by their address.
  if (artifact.source == GG_SOURCE_ROWS) write_descriptor(artifact, map_of_a(p, artifact), record.a);
  const bool has_halves = artifact.epilogue == GG_GATED;
  write_descriptor(artifact, has_halves ? map_of_halves(p, artifact) : map_of_b(p, artifact), record.b);
  write_descriptor(artifact, map_of_c(p, artifact), record.c);
  write_rest(p, record);
  return record;
}

}  // namespace

ProblemRecord grouped_record(const GroupedProblem& p, const gg_artifact& artifact) {
  const bool is_plain = artifact.epilogue == GG_LINEAR && artifact.source == GG_SOURCE_ROWS;
  if (artifact.addressing == GG_HOST_DESCRIPTORS && !is_plain) {
    auto record = descriptors_record<gg_gated_descriptors>(p, artifact);
    write_gated(p, record);
    record.a_address = p.a, record.a_row = p.a_row;
    return words_of(record);
  }
  if (artifact.addressing == GG_HOST_DESCRIPTORS) {
    return words_of(descriptors_record<gg_grouped_descriptors>(p, artifact));
  }
  if (artifact.epilogue == GG_GATED) return words_of(gated_pointers_record<gg_gated_pointers>(p));
  return words_of(pointers_record<gg_grouped_pointers>(p));
}

}  // namespace gg
