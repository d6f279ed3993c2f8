// The form `grouped`: one stack of alike products. One extent may be ragged: the device knows its parts. Validated, and
// free of any framework.
//
//   extents      M                     K                     A, B, C of group g
//   GG_M_ENDS    ends on the device    constant              rows from ends[g-1] on, B[g], rows from ends[g-1] on
//   GG_K_ENDS    constant              ends on the device    columns from ends[g-1] on, rows from ends[g-1] on, C[g]
//   GG_M_COUNTS  counts on the device  constant              A[g], B[g], C[g]; rows past counts[g] are not written
//
// GG_M_COUNTS without counts are batched matrices: all rows are computed. A ragged N is the transposed product of
// GG_M_ENDS: see make_grouped.cpp.
#pragma once

#include <cstdint>

#include "abi/artifact.h"
#include "arrays/tensor.hpp"
#include "forms/activation.hpp"
#include "forms/gradient_rows.hpp"
#include "forms/problem.hpp"

namespace gg {

// Which row of A is row r of the product: index[r], or zeros where that is not in [0, a_rows). Without: row r.
struct RowIndex {
  uint64_t data = 0;  // int32 or int64 [M] on the device, contiguous, or 0
  int bytes = 4;
  int64_t a_rows = 0;
};

// C = alpha * sums + beta * C, computed in float32 and rounded once; where beta is 0 C is not read. For a ragged K.
struct Factors {
  float alpha = 1, beta = 0;
  uint64_t alpha_at = 0, beta_at = 0;  // float32 on the device, in place of the number; or 0

  bool reads_output() const { return beta_at != 0 || beta != 0; }
};

// Of what batch-invariant choices are predicted for, whatever the batch.
constexpr int64_t invariant_groups = 64, invariant_rows = invariant_groups * 256;

// Where the device has counts, one row in so many is expected to matter. Each group has room for the tokens of all
// ranks, and a token goes to top_k of all experts: 2 of 8 (Mixtral), 8 of 128 (Qwen3), 8 of 256 (DeepSeek).
constexpr int64_t room_of_a_row = 8;

// For GG_M_ENDS C[end[g-1]:end[g]] = scale_a scale_b[g] A[the same rows] @ B[g] + bias[g], where the kernel keeps
// end[g] between end[g-1] and M; rows past the last end are 0. For GG_K_ENDS C[g] = A[:, the same columns] @
// B[end[g-1]: end[g]], where what lies past the last end enters no sum. For GG_M_COUNTS C[g] = A[g] @ B[g] + bias[g].
// Addresses in bytes, strides in elements.
struct GroupedProblem final : Problem {
  uint64_t a, b, c;
  int64_t a_group, a_row, a_col, b_group, b_row, b_col, c_group, c_row, c_col;  // group strides: 0 where all share one
  int64_t groups, m, n, k;  // a ragged extent by ends: of all groups together
  uint64_t ragged;          // int32 [groups] on the device: its ends or counts, or 0
  uint64_t bias;            // [groups, N] of the outputs' dtype, or 0
  int64_t bias_row, bias_col;
  uint64_t scale_a, scale_b;  // float32, or 0: 1
  int64_t scale_b_step;       // elements from the scales of a group to the next's, 0 where they share one
  // Of GG_SCALING_ROW and GG_SCALING_BLOCK: to the next row or column, or 128 of them, and the next 128 of K; and to
  // the next group of a stack. Of a ragged K: to the next row, column and block, of which each group has its own, one
  // behind the other.
  int64_t scale_a_group, scale_a_row, scale_a_k, scale_b_n, scale_b_k;
  int64_t scale_blocks;  // for a ragged K: of all groups, at least; further ones have the last one's scales
  // Of C in e4m3, which the kernel quantizes behind a gated activation: where a float32 for each 1x128 goes; 0: none.
  uint64_t scale_c;
  int64_t scale_c_row, scale_c_k;
  bool batch_invariant;  // the kernel is not to depend on M
  bool skips_rest;       // rows past the last end are not written
  Activation activation;
  RowIndex index;       // of rows of A; for a ragged K of its columns
  RowIndex index_b;     // for a ragged K: of rows of B
  Factors factors;      // for a ragged K
  bool accumulates;     // for a ragged K: the kernel adds alpha times its sums to C, which is float32
  int64_t splits;       // for a ragged K: parts of each group's K; C is then [groups * splits, M, N]
  int k_alignment = 1;  // for a ragged K: a power of two; ends count as the next multiple of it, or as K
  // Of GG_GATED_GRADIENT: what it reads and writes besides, as long as the problem is used. The sums are dh, and C is
  // h, or dz where that is left out.
  const GradientRows* gradient = nullptr;

  bool has_activation() const { return activation.kind != GG_ACTIVATION_NONE; }
  bool has_index() const { return index.data != 0 && k > 0; }  // that names rows, or columns, with elements
  bool has_index_b() const { return index_b.data != 0 && k > 0; }
  int64_t output_columns() const { return activation.gated() ? n / 2 : n; }
  int64_t predicted_rows() const;  // of all groups
  int64_t rows_of_a() const { return index.data && extents == GG_M_ENDS ? index.a_rows : m; }
  // Along a ragged K an index may name any column of A and any row of B, however few it names.
  int64_t columns_of_a() const { return index.data && extents == GG_K_ENDS ? index.a_rows : k; }
  int64_t rows_of_b() const { return index_b.data && extents == GG_K_ENDS ? index_b.a_rows : k; }

  // The same product for a kernel that does all of it, the activation and the index too. Nothing is said of whether
  // there is one: `guarantees` and the catalog do.
  GroupedProblem fused() const;

  // Replaces strides that are never used and works out `guarantees` from the other fields: after any of them has
  // changed.
  void complete();

  // The strides of an output that the problem writes: a matrix, or a stack of them where each group has its own.
  void set_output(const Tensor& out);
  bool has_all_scales() const { return scale_a != 0 && scale_b != 0; }
  bool has_output_stack() const { return extents != GG_M_ENDS; }
  int64_t part_count() const { return splits > 1 ? splits : 1; }  // matrices of C for each group

  gg_form form() const override { return GG_GROUPED; }
  bool has_outputs() const override { return m > 0 && n > 0 && (!has_output_stack() || groups > 0); }
  std::optional<uint64_t> table_key() const override;
  std::optional<ChoiceKey> choice_key() const override;
  Work work(const gg_artifact& artifact, double ctas) const override;
  ProblemRecord write_record(const gg_artifact& artifact) const override;
  void write_sizes(gg_arguments& arguments) const override;
  int64_t tile_bound(const gg_artifact& artifact) const override;
  const char* ruled_out(const gg_artifact& artifact) const override;
  const char* function() const override { return "grouped_mm"; }
  const char* noun() const override { return "product"; }
  const char* row_words() const override { return "E, N, K and about this many rows have a row in the tables"; }
  const char* model_words() const override;

 private:
  void free_unused_strides();
};

// What a launch has to do, by extents: in grouped_work.cpp.
Work work_of_m_ends(const GroupedProblem& problem, const gg_artifact& artifact, double ctas);
Work work_of_k_ends(const GroupedProblem& problem, const gg_artifact& artifact, double ctas);
Work work_of_stack(const GroupedProblem& problem, const gg_artifact& artifact, double ctas);

// The records of kernels, by extents.
ProblemRecord grouped_record(const GroupedProblem& problem, const gg_artifact& artifact);
ProblemRecord grouped_k_record(const GroupedProblem& problem, const gg_artifact& artifact);
ProblemRecord stack_record(const GroupedProblem& problem, const gg_artifact& artifact);

}  // namespace gg
