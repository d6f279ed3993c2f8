#include "problem.hpp"

#include <algorithm>
#include <utility>

#include "dtype.hpp"

namespace gg {
namespace {

void restrict_masks(Problem& problem, const Group& g) {
  const int bytes = element_bytes(problem.dtype), out_bytes = element_bytes(problem.out_dtype);
  const Promise a[2] = {promise(g.a, g.k, g.a_col, g.m, g.a_row, bytes),
                        promise(g.a, g.m, g.a_row, g.k, g.a_col, bytes)};
  const Promise b[2] = {promise(g.b, g.n, g.b_col, g.k, g.b_row, bytes),
                        promise(g.b, g.k, g.b_row, g.n, g.b_col, bytes)};
  problem.keeps.restrict(a, b, promise(g.c, g.n, g.c_col, g.m, g.c_row, out_bytes), g.k > 0);
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
  }
  free_strides(g.m, g.k, g.a_row, g.a_col);
  free_strides(g.k, g.n, g.b_row, g.b_col);
  free_strides(g.m, g.n, g.c_row, g.c_col);
  return g;
}

Problem make_problem(gg_dtype dtype, gg_dtype out_dtype, const std::vector<Group>& groups) {
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
  for (const Group* group : kept) {
    problem.groups.push_back(canonical(*group));
    restrict_masks(problem, problem.groups.back());
  }
  for (const Group& g : problem.groups) {
    const Run* last = problem.runs.empty() ? nullptr : &problem.runs.back();
    if (last && last->m == g.m && last->n == g.n && last->k == g.k) problem.runs.back().count++;
    else problem.runs.push_back({g.m, g.n, g.k, 1});
  }
  return problem;
}

int64_t tile_count(const Problem& problem, int block_m, int block_n) {
  int64_t tiles = 0;
  for (const Run& run : problem.runs) tiles += run.count * tiles_along(run.m, block_m) * tiles_along(run.n, block_n);
  return tiles;
}

}  // namespace gg
