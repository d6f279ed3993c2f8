#include "problem.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "dtype.hpp"
#include "error.hpp"

namespace gg {
namespace {

// What is known of all groups, once they are there.
void summarize(Problem& problem) {
  for (const Group& g : problem.groups) {
    const Masks kept = keeps(g, problem.dtype, problem.out_dtype);
    problem.keeps.unit_stride &= kept.unit_stride;
    problem.keeps.vectorized &= kept.vectorized;
    problem.keeps.described &= kept.described;
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

Problem make_problem(gg_dtype dtype, gg_dtype out_dtype, const std::vector<Group>& groups) {
  check_elements(groups);
  Problem problem;
  problem.dtype = dtype;
  problem.out_dtype = out_dtype;
  std::vector<const Group*> kept;
  kept.reserve(groups.size());
  for (const Group& group : groups) {
    if (group.m > 0 && group.n > 0) kept.push_back(&group);
  }
  const auto deeper = [](const Group* x, const Group* y) { return x->k > y->k; };
  std::stable_sort(kept.begin(), kept.end(), deeper);
  problem.groups.reserve(kept.size());
  for (const Group* group : kept) problem.groups.push_back(canonical(*group));
  summarize(problem);
  return problem;
}

Masks keeps(const Group& g, gg_dtype dtype, gg_dtype out_dtype) {
  const int bytes = element_bytes(dtype), out_bytes = element_bytes(out_dtype);
  const Promise a[2] = {promise(g.a, g.k, g.a_col, g.m, g.a_row, bytes),
                        promise(g.a, g.m, g.a_row, g.k, g.a_col, bytes)};
  const Promise b[2] = {promise(g.b, g.n, g.b_col, g.k, g.b_row, bytes),
                        promise(g.b, g.k, g.b_row, g.n, g.b_col, bytes)};
  Masks kept;
  kept.restrict(a, b, promise(g.c, g.n, g.c_col, g.m, g.c_row, out_bytes), g.k > 0);
  return kept;
}

Problem subset(const Problem& problem, const std::vector<bool>& wanted) {
  Problem part;
  part.dtype = problem.dtype;
  part.out_dtype = problem.out_dtype;
  for (size_t i = 0; i < problem.groups.size(); i++) {
    if (wanted[i]) part.groups.push_back(problem.groups[i]);
  }
  summarize(part);
  return part;
}

int64_t tile_count(const Problem& problem, int block_m, int block_n) {
  int64_t tiles = 0;
  for (const Run& run : problem.runs) tiles += run.count * tiles_along(run.m, block_m) * tiles_along(run.n, block_n);
  return tiles;
}

}  // namespace gg
