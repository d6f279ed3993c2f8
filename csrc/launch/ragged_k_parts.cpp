#include "launch/ragged_k_parts.hpp"

#include <algorithm>

#include "arrays/padded_rows.hpp"

namespace gg {
namespace {

// A part of K that is shorter than this takes as long to begin and to end as to be summed.
constexpr int64_t shortest_part = 512, most_splits = 64;

// The tile of most kernels: how many multiprocessors have work.
constexpr int64_t usual_tile = 128;

// `row`, `col`: strides along K, and along the other dimension.
GatherRows gather_of(uint64_t source, int64_t row, int64_t col, const RowIndex& index, uint64_t out,
                     const GroupedProblem& p, int64_t columns) {
  GatherRows gather;
  gather.source = source, gather.source_row = row, gather.source_col = col, gather.source_rows = index.a_rows;
  gather.index = index.data, gather.index_bytes = index.bytes;
  gather.out = out, gather.out_row = padded_row(columns, p.dtype);
  gather.rows = p.k, gather.columns = columns, gather.dtype = p.dtype;
  return gather;
}

// Who gathers: launches alone, or for one operand the kernel that multiplies.
std::vector<Division> gathering(const GroupedProblem& p) {
  const bool a = p.has_index(), b = p.has_index_b();
  std::vector<Division> found{{a, false, false, 1, b}};
  if (a) found.push_back({false, false, false, 1, b});
  if (b) found.push_back({a, false, false, 1, false});
  return found;
}

AddParts add_of(const GroupedProblem& p, const GroupedProblem& product) {
  AddParts add;
  add.sums = product.c, add.parts = product.part_count();
  add.groups = p.groups, add.rows = p.m, add.columns = p.n;
  add.out = p.c, add.out_group = p.c_group, add.out_row = p.c_row, add.out_col = p.c_col;
  add.dtype = p.out_dtype, add.factors = p.factors;
  return add;
}

}  // namespace

bool may_accumulate(const GroupedProblem& p) {
  return p.out_dtype == GG_FP32 && p.factors.beta_at == 0 && p.factors.beta == 1;
}

Division all_parts_of_k(const GroupedProblem& p) {
  return {p.has_index(), false, p.factors.reads_output(), 1, p.has_index_b()};
}

std::vector<Division> divisions_of_k(const GroupedProblem& p, const Device& device) {
  std::vector<Division> found;
  const auto add = [&](bool adds, int64_t splits) {
    for (const Division& who : gathering(p)) found.push_back({who.gathers, false, adds, splits, who.gathers_b});
  };
  add(p.factors.reads_output(), 1);
  if (may_accumulate(p)) add(false, 1);
  const int64_t of_rows = p.groups * ceil_div(p.m, usual_tile);
  const double tiles = static_cast<double>(of_rows) * static_cast<double>(ceil_div(p.n, usual_tile));
  const int64_t depth = p.k / std::max<int64_t>(p.groups, 1);
  for (int64_t splits = 2; splits <= most_splits; splits *= 2) {
    if (tiles * static_cast<double>(splits) > 2.0 * device.multiprocessors || depth / splits < shortest_part) break;
    add(true, splits);
  }
  return found;
}

PartsBytes parts_bytes_of_k(const GroupedProblem& p, const Division& division) {
  PartsBytes bytes;
  if (division.gathers) bytes.gathered = bytes_of_rows(p.k, p.m, p.dtype);
  if (division.gathers_b) bytes.gathered_b = bytes_of_rows(p.k, p.n, p.dtype);
  if (division.adds) {
    const auto matrices = static_cast<size_t>(p.groups * division.splits);
    bytes.sums = matrices * static_cast<size_t>(p.m) * static_cast<size_t>(p.n) * sizeof(float);
  }
  return bytes;
}

Parts parts_of_k(const GroupedProblem& problem, const Division& division, const PartsMemory& memory) {
  Parts parts{{}, {}, problem, {}, {}};
  GroupedProblem& product = parts.product;
  if (division.gathers) {
    parts.gather =
        gather_of(problem.a, problem.a_col, problem.a_row, problem.index, memory.gathered, problem, problem.m);
    product.a = memory.gathered, product.a_row = 1, product.a_col = parts.gather->out_row;
  }
  if (division.gathers_b) {
    parts.gather_b =
        gather_of(problem.b, problem.b_row, problem.b_col, problem.index_b, memory.gathered_b, problem, problem.n);
    product.b = memory.gathered_b, product.b_row = parts.gather_b->out_row, product.b_col = 1;
  }
  if (division.gathers || !problem.has_index()) product.index = {};
  if (division.gathers_b || !problem.has_index_b()) product.index_b = {};
  if (product.index.data) product.source = GG_SOURCE_INDEXED;
  if (product.index_b.data) product.source = GG_SOURCE_INDEXED_B;
  product.accumulates = problem.factors.reads_output() && !division.adds;
  product.factors.beta = 0, product.factors.beta_at = 0;
  if (division.adds) {
    product.factors = {};
    product.splits = division.splits;
    product.out_dtype = GG_FP32;
    product.c = memory.sums, product.c_row = problem.n, product.c_col = 1, product.c_group = problem.m * problem.n;
  }
  product.complete();
  if (division.adds) parts.add = add_of(problem, product);
  return parts;
}

}  // namespace gg
