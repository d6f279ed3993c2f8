// The form `grouped`: rows of A fall into groups, each with a matrix of B of its own; the device knows where each group
// ends. Validated, and free of any framework.
#pragma once

#include <cstdint>

#include "abi/artifact.h"
#include "forms/problem.hpp"

namespace gg {

// C[end[g-1]:end[g]] = scale_a scale_b[g] A[the same rows] @ B[g] + bias[g], where end[g] is offs[g], kept between
// end[g-1] and `rows` by the kernel; rows past the last end are 0. Addresses in bytes, strides in elements.
struct GroupedProblem final : Problem {
  uint64_t a, b, c;
  int64_t a_row, a_col, b_group, b_row, b_col, c_row, c_col;
  int64_t groups, rows, columns, depth;  // E, rows of A and C, N, K
  uint64_t offs;
  uint64_t bias;  // [E, N] of the outputs' dtype, or 0
  int64_t bias_row, bias_col;
  uint64_t scale_a, scale_b;  // float32, or 0: 1
  int64_t scale_b_step;       // elements from the scale of a group to the next's, 0 where they share one
  bool batch_invariant;       // the kernel is not to depend on `rows`

  // Replaces strides that are never used and works out `guarantees` from the other fields: after any of them has
  // changed.
  void complete();
  void set_output(uint64_t address, int64_t row_stride, int64_t column_stride);

  gg_form form() const override { return GG_GROUPED; }
  bool has_outputs() const override { return rows > 0 && columns > 0; }
  std::optional<uint64_t> table_key() const override;
  std::optional<ChoiceKey> choice_key() const override;
  Work work(const gg_artifact& artifact, double ctas) const override;
  ProblemRecord write_record(const gg_artifact& artifact) const override;
  void write_sizes(gg_arguments& arguments) const override;
  int64_t tile_bound(const gg_artifact& artifact) const override;
  const char* function() const override { return "grouped_mm"; }
  const char* noun() const override { return "product"; }
  const char* row_words() const override { return "E, N, K and about this many rows have a row in the tables"; }
  const char* model_words() const override;
};

}  // namespace gg
