// The form `grouped`: one stack of alike products. One extent may be ragged: the device knows its parts. Validated, and
// free of any framework.
//
//   extents      M                     K                     A, B, C of group g
//   GG_M_ENDS    ends on the device    constant              rows from ends[g-1] on, B[g], rows from ends[g-1] on
//   GG_K_ENDS    constant              ends on the device    columns from ends[g-1] on, rows from ends[g-1] on, C[g]
//   GG_HOST      constant              constant              A[g], B[g], C[g]
//   GG_M_COUNTS  counts on the device  constant              A[g], B[g], C[g]; rows past counts[g] do not matter
//
// Kernels and checks are there for GG_M_ENDS alone.
#pragma once

#include <cstdint>

#include "abi/artifact.h"
#include "arrays/tensor.hpp"
#include "forms/problem.hpp"

namespace gg {

// What becomes of the sums, besides scales and bias. A gated activation takes two columns of B for one of C.
struct Activation {
  gg_activation kind = GG_ACTIVATION_NONE;
  gg_gate_order order = GG_GATE_FIRST;  // of a gated one
  uint64_t kept = 0;                    // pre-activation [M, N] of the outputs' dtype, columns in B's order, or 0
  int64_t kept_row = 0;                 // its rows are contiguous

  bool gated() const { return kind >= GG_ACTIVATION_SWIGLU && kind <= GG_ACTIVATION_SWIGLU_OAI; }
  // Whether a kernel with a gated epilogue could do it: what is kept is stored as halves, and not with erf.
  bool fusible() const { return gated() && (kept == 0 || (order != GG_INTERLEAVED && kind != GG_ACTIVATION_GEGLU)); }
};

// Which row of A is row r of the product: index[r], or zeros where that is not in [0, a_rows). Without: row r.
struct RowIndex {
  uint64_t data = 0;  // int32 or int64 [M] on the device, contiguous, or 0
  int bytes = 4;
  int64_t a_rows = 0;
};

// Of what batch-invariant choices are predicted for, whatever the batch.
constexpr int64_t invariant_groups = 64, invariant_rows = invariant_groups * 256;

// For GG_M_ENDS C[end[g-1]:end[g]] = scale_a scale_b[g] A[the same rows] @ B[g] + bias[g], where the kernel keeps
// end[g] between end[g-1] and M; rows past the last end are 0. Addresses in bytes, strides in elements.
struct GroupedProblem final : Problem {
  uint64_t a, b, c;
  int64_t a_group, a_row, a_col, b_group, b_row, b_col, c_group, c_row, c_col;  // group strides: 0 where all share one
  int64_t groups, m, n, k;  // of a ragged extent the sum over all groups
  uint64_t ragged;          // int32 [groups] on the device: its ends or counts, or 0
  uint64_t bias;            // [groups, N] of the outputs' dtype, or 0
  int64_t bias_row, bias_col;
  uint64_t scale_a, scale_b;  // float32, or 0: 1
  int64_t scale_b_step;       // elements from the scale of a group to the next's, 0 where they share one
  bool batch_invariant;       // the kernel is not to depend on M
  bool skips_rest;            // rows past the last end are not written
  Activation activation;
  RowIndex index;

  int64_t output_columns() const { return activation.gated() ? n / 2 : n; }
  int64_t predicted_rows() const { return batch_invariant ? invariant_rows : m; }
  int64_t rows_of_a() const { return index.data ? index.a_rows : m; }

  // The same product for a kernel that does all of it, the activation and the index too. Nothing is said of whether
  // there is one: `guarantees` and the catalog do.
  GroupedProblem fused() const;

  // Replaces strides that are never used and works out `guarantees` from the other fields: after any of them has
  // changed.
  void complete();
  void set_output(const Tensor& out);

  gg_form form() const override { return GG_GROUPED; }
  bool has_outputs() const override { return m > 0 && n > 0; }
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
