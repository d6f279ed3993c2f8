#include "forms/list_problem.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "arrays/dtype.hpp"
#include "driver/error.hpp"
#include "forms/table_key.hpp"

namespace gg {
namespace {

// What is known of all groups, once they are there.
void summarize(ListProblem& problem) {
  for (const Group& g : problem.groups) {
    const Guarantees kept = guarantees_of(g, problem.dtype, problem.out_dtype);
    problem.guarantees.unit_stride &= kept.unit_stride;
    problem.guarantees.vectorized &= kept.vectorized;
    problem.guarantees.described &= kept.described;
    const Run* last = problem.runs.empty() ? nullptr : &problem.runs.back();
    if (last && last->m == g.m && last->n == g.n && last->k == g.k) problem.runs.back().count++;
    else problem.runs.push_back({g.m, g.n, g.k, 1});
  }
}

// Outputs are distinct, so memory that holds them holds fewer elements than this; `explain` is asked about any sizes.
// It bounds the tiles of a list too, which are counted in int64.
constexpr int64_t most_elements = int64_t{1} << 61;

void check_elements(const std::vector<Group>& groups) {
  int64_t elements = 0;
  for (const Group& group : groups) {
    if (!__builtin_add_overflow(elements, group.m * group.n, &elements) && elements <= most_elements) continue;
    throw ValueError(
        "group_gemm: the outputs have more elements than memory has addresses, the last that was counted "
        "is [" +
        std::to_string(group.m) + ", " + std::to_string(group.n) + "]; split the list");
  }
}

}  // namespace

Group canonical(Group g) {
  if (g.c_col != 1 && g.n > 1 && (g.c_row == 1 || g.m <= 1)) {
    std::swap(g.a, g.b);
    std::swap(g.m, g.n);
    std::swap(g.c_row, g.c_col);
    std::swap(g.a_row, g.b_col);
    std::swap(g.a_col, g.b_row);
    std::swap(g.scale_a, g.scale_b);
    g.turned = !g.turned;
  }
  free_strides(g.m, g.k, g.a_row, g.a_col);
  free_strides(g.k, g.n, g.b_row, g.b_col);
  free_strides(g.m, g.n, g.c_row, g.c_col);
  return g;
}

ListProblem make_problem(gg_dtype dtype, gg_dtype out_dtype, const std::vector<Group>& groups, gg_scaling scaling,
                         std::vector<ScaleStrides> scale_strides) {
  check_elements(groups);
  ListProblem problem;
  problem.dtype = dtype;
  problem.out_dtype = out_dtype;
  problem.scaling = scaling;
  problem.scale_strides = std::move(scale_strides);
  std::vector<const Group*> kept;
  kept.reserve(groups.size());
  for (const Group& group : groups) {
    if (group.m > 0 && group.n > 0) kept.push_back(&group);
  }
  const auto deeper = [](const Group* x, const Group* y) { return x->k > y->k; };
  // NOLINTNEXTLINE(bugprone-nondeterministic-pointer-iteration-order): by K, not by address
  std::stable_sort(kept.begin(), kept.end(), deeper);
  problem.groups.reserve(kept.size());
  // Blocks of A and of B are not alike, so no product with them is turned.
  const bool turns = scaling != GG_SCALING_BLOCK;
  for (const Group* group : kept) problem.groups.push_back(turns ? canonical(*group) : *group);
  summarize(problem);
  return problem;
}

Guarantees guarantees_of(const Group& g, gg_dtype dtype, gg_dtype out_dtype) {
  const int bytes = element_bytes(dtype), out_bytes = element_bytes(out_dtype);
  const Guarantee a[2] = {guarantee(g.a, g.k, g.a_col, g.m, g.a_row, bytes),
                          guarantee(g.a, g.m, g.a_row, g.k, g.a_col, bytes)};
  const Guarantee b[2] = {guarantee(g.b, g.n, g.b_col, g.k, g.b_row, bytes),
                          guarantee(g.b, g.k, g.b_row, g.n, g.b_col, bytes)};
  Guarantees kept;
  kept.restrict(a, b, guarantee(g.c, g.n, g.c_col, g.m, g.c_row, out_bytes), g.k > 0);
  return kept;
}

ListProblem subset(const ListProblem& problem, const std::vector<bool>& wanted) {
  ListProblem part;
  part.dtype = problem.dtype;
  part.out_dtype = problem.out_dtype;
  part.scaling = problem.scaling;
  part.scale_strides = problem.scale_strides;
  for (size_t i = 0; i < problem.groups.size(); i++) {
    if (wanted[i]) part.groups.push_back(problem.groups[i]);
  }
  summarize(part);
  return part;
}

// Lists with scales by row or by block were not measured.
std::optional<uint64_t> ListProblem::table_key() const {
  if (scaling != GG_SCALING_TENSOR) return std::nullopt;
  ListKey key;
  for (const Run& run : runs) key.add(run.m, run.n, run.k, run.count);
  return key.value();
}

// CTA 0 has the most work: it takes tiles 0, P, 2P, ... of a list that is sorted by falling K, P CTAs in all.
Work ListProblem::work(const gg_artifact& artifact, double ctas) const {
  const auto grid = static_cast<int64_t>(ctas);
  int64_t next = 0, end = 0;
  double tiles = 0, k_tiles = 0;
  for (const Run& run : runs) {
    end += tile_count(run, artifact);
    if (next >= end) continue;
    const int64_t waves = end - next <= grid ? 1 : ceil_div(end - next, grid);
    tiles += static_cast<double>(waves);
    k_tiles += static_cast<double>(waves) * static_cast<double>(tiles_along(run.k, artifact.block_k));
    next += waves * grid;
  }
  return {tiles, k_tiles, 0};
}

int64_t ListProblem::tile_bound(const gg_artifact& artifact) const {
  int64_t tiles = 0;
  for (const Run& run : runs) tiles += tile_count(run, artifact);
  return tiles;
}

}  // namespace gg
