#include "problem.hpp"

#include <algorithm>
#include <utility>

namespace gg {
namespace {

constexpr int64_t elements_in_16_bytes = 8;
constexpr int64_t tma_stride_limit = int64_t{1} << 39;  // elements: a descriptor's strides are below 2^40 bytes

bool divides_8(int64_t x) { return x % elements_in_16_bytes == 0; }

// What a matrix promises if it is read with the first of its dimensions contiguous. A dimension of size 1 or 0 has no
// stride, so nothing about its stride can break a promise.
struct Promise {
  bool unit, vectorized, described;
};

Promise promise(uint64_t address, int64_t contiguous, int64_t stride, int64_t leading, int64_t leading_stride) {
  const bool aligned = address % 16 == 0 && (leading <= 1 || divides_8(leading_stride));
  const bool strides_up = leading <= 1 || (leading_stride > 0 && leading_stride < tma_stride_limit);
  return {contiguous <= 1 || stride == 1, aligned && divides_8(contiguous), aligned && strides_up};
}

void restrict_masks(Problem& problem, const Group& g) {
  const Promise a[2] = {promise(g.a, g.k, g.a_col, g.m, g.a_row), promise(g.a, g.m, g.a_row, g.k, g.a_col)};
  const Promise b[2] = {promise(g.b, g.n, g.b_col, g.k, g.b_row), promise(g.b, g.k, g.b_row, g.n, g.b_col)};
  const Promise c = promise(g.c, g.n, g.c_col, g.m, g.c_row);
  for (int layout = GG_NN; layout <= GG_TT; layout++) {
    const Promise &pa = a[layout >> 1], &pb = b[layout & 1];
    const auto others = static_cast<LayoutMask>(~(1u << layout));
    if (!(pa.unit && pb.unit && c.unit)) problem.unit_stride &= others;
    if (!(pa.vectorized && pb.vectorized && c.vectorized)) problem.vectorized &= others;
    // TMA writes rows of C by whole 16 bytes, so that an odd N would reach into what lies behind it.
    const bool writes_whole = c.described && c.vectorized;
    if (!(pa.described && pb.described && writes_whole && g.k > 0)) problem.described &= others;
  }
}

// A stride that is never used becomes one that a TMA descriptor takes.
void free_strides(int64_t rows, int64_t columns, int64_t& row_stride, int64_t& column_stride) {
  const auto round_up = [](int64_t x) { return std::max<int64_t>(1, ceil_div(x, elements_in_16_bytes)) * elements_in_16_bytes; };
  if (rows <= 1) row_stride = round_up(columns);
  if (columns <= 1) column_stride = round_up(rows);
}

}  // namespace

Group canonical(Group g) {
  if (g.c_col != 1 && g.n > 1 && (g.c_row == 1 || g.m <= 1)) {
    std::swap(g.a, g.b);
    std::swap(g.m, g.n);
    std::swap(g.c_row, g.c_col);
    std::swap(g.a_row, g.b_col);
    std::swap(g.a_col, g.b_row);
  }
  free_strides(g.m, g.k, g.a_row, g.a_col);
  free_strides(g.k, g.n, g.b_row, g.b_col);
  free_strides(g.m, g.n, g.c_row, g.c_col);
  return g;
}

Problem make_problem(gg_dtype dtype, const std::vector<Group>& groups) {
  Problem problem;
  problem.dtype = dtype;
  problem.groups.reserve(groups.size());
  for (const Group& group : groups) {
    if (group.m == 0 || group.n == 0) continue;
    problem.groups.push_back(canonical(group));
    restrict_masks(problem, problem.groups.back());
  }
  std::stable_sort(problem.groups.begin(), problem.groups.end(), [](const Group& x, const Group& y) { return x.k > y.k; });
  for (const Group& g : problem.groups) {
    const Run* last = problem.runs.empty() ? nullptr : &problem.runs.back();
    if (last && last->m == g.m && last->n == g.n && last->k == g.k) problem.runs.back().count++;
    else problem.runs.push_back({g.m, g.n, g.k, 1});
  }
  return problem;
}

int64_t tile_count(const Problem& problem, int block_m, int block_n) {
  int64_t tiles = 0;
  for (const Group& group : problem.groups) tiles += tile_count(group, block_m, block_n);
  return tiles;
}

}  // namespace gg
