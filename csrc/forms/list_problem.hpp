// The form `list`: products of unlike sizes, which the host knows. Validated, and free of any framework.
#pragma once

#include <cstdint>
#include <vector>

#include "abi/artifact.h"
#include "forms/guarantees.hpp"
#include "forms/problem.hpp"

namespace gg {

// One product C [m, n] = scale_a scale_b A [m, k] @ B [k, n]. Addresses in bytes, strides in elements.
struct Group {
  uint64_t a, b, c;
  int64_t a_row, a_col, b_row, b_col, c_row, c_col;
  int64_t m, n, k;
  uint64_t scale_a, scale_b;  // of a float32 each; 0: the scale is 1
  int32_t index;              // in the caller's lists
  bool turned = false;        // computed as C^T = B^T A^T: `a` is the caller's B
};

// Of scales by row and column, or by block, in elements: to the next row or column, or 128 of them, and 128 of K.
struct ScaleStrides {
  int64_t a_row, a_k, b_n, b_k;
};

// Groups of one size that follow each other.
struct Run {
  int64_t m, n, k, count;
};

struct ListProblem final : Problem {
  std::vector<Group> groups;                // those with output elements, by falling K
  std::vector<Run> runs;                    // the sizes of `groups`, for those who ask about each kernel
  std::vector<ScaleStrides> scale_strides;  // by the groups' indices; empty with GG_SCALING_TENSOR

  gg_form form() const override { return GG_LIST; }
  bool has_outputs() const override { return !groups.empty(); }
  std::optional<uint64_t> table_key() const override;
  Work work(const gg_artifact& artifact, double ctas) const override;
  ProblemRecord write_record(const gg_artifact& artifact) const override;
  void write_sizes(gg_arguments& arguments) const override;
  int64_t tile_bound(const gg_artifact& artifact) const override;  // exact
  size_t expected_upload_count(const gg_artifact& artifact, size_t capacity) const override;
  std::string culprit(const gg_artifact& artifact) const override;
  const char* function() const override { return "group_gemm"; }
  const char* noun() const override { return "list"; }
  const char* row_words() const override { return "this list of sizes has a row in the tables"; }
};

// Turns the group so that C has unit column stride if it can: C^T = B^T A^T is the same product.
// Strides along dimensions of size 1 or 0 are never used; they are replaced by what any kernel accepts.
Group canonical(Group group);

// Sorts, drops empty groups and works out what they keep. Sizes are at least 0 and below 2^31. Throws ValueError where
// the outputs have more elements than there are addresses. `scale_strides`: of each group, in the order of the lists.
ListProblem make_problem(gg_dtype dtype, gg_dtype out_dtype, const std::vector<Group>& groups,
                         gg_scaling scaling = GG_SCALING_TENSOR, std::vector<ScaleStrides> scale_strides = {});

// What the matrices of one group guarantee.
Guarantees guarantees_of(const Group& group, gg_dtype dtype, gg_dtype out_dtype);

// The groups of a problem for which `wanted` is set, as a problem of their own.
ListProblem subset(const ListProblem& problem, const std::vector<bool>& wanted);

// Output tiles of a group, and of a run.
inline int64_t tile_count(const Group& group, const gg_artifact& artifact) {
  return tiles_along(group.m, artifact.block_m) * tiles_along(group.n, artifact.block_n);
}
inline int64_t tile_count(const Run& run, const gg_artifact& artifact) {
  return run.count * tiles_along(run.m, artifact.block_m) * tiles_along(run.n, artifact.block_n);
}

}  // namespace gg
