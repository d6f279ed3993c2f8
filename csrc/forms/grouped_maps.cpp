#include "forms/grouped_maps.hpp"

namespace gg {
namespace {

// Rows are counted from behind: the hardware reads zeros and writes nothing past the end of a dimension, so a group's
// end is put there. Row r of a group with `size` rows that end at row `stop` is row last_row - size + r of the second
// dimension; two more lead from there to row stop - size + r of memory: `stop` steps of a row, and last_row steps of
// 2^34 elements less a row, which take last_row rows away again, as addresses are taken modulo 2^64.
constexpr uint64_t last_row = uint64_t{1} << 30, any_row = 0x7fff0000;
constexpr uint64_t round_trip = uint64_t{1} << 34;

}  // namespace

TensorMap counted_from_behind(TensorMap rows) {
  rows.rank = 4;
  rows.sizes[1] = last_row;
  rows.sizes[2] = rows.sizes[3] = any_row;
  rows.byte_strides[1] = round_trip * static_cast<uint64_t>(element_bytes(rows.dtype)) - rows.byte_strides[0];
  rows.byte_strides[2] = rows.byte_strides[0];
  rows.box[2] = rows.box[3] = 1;
  return rows;
}

TensorMap stacked(TensorMap matrix, int64_t count, int64_t stride) {
  const int dimension = matrix.rank++;
  matrix.sizes[dimension] = static_cast<uint64_t>(count);
  matrix.byte_strides[dimension - 1] =
      static_cast<uint64_t>(stride) * static_cast<uint64_t>(element_bytes(matrix.dtype));
  matrix.box[dimension] = 1;
  return matrix;
}

TensorMap map_of_b(const GroupedProblem& p, const gg_artifact& artifact) {
  const TensorMap b = b_by_columns(artifact) ? make_tensor_map(p.dtype, p.b, p.k, p.n, p.b_col, artifact.block_n)
                                             : make_tensor_map(p.dtype, p.b, p.n, p.k, p.b_row, artifact.block_k);
  return stacked(b, p.groups, p.b_group);
}

Halves halves_of_b(const GroupedProblem& p) {
  if (p.activation.order == GG_INTERLEAVED) return {p.b_col, 2 * p.b_col};
  return {p.n / 2 * p.b_col, p.b_col};
}

TensorMap map_of_halves(const GroupedProblem& p, const gg_artifact& artifact) {
  const int64_t columns = p.n / 2;
  const Halves halves = halves_of_b(p);
  const TensorMap b = b_by_columns(artifact)
                          ? make_tensor_map(p.dtype, p.b, p.k, columns, halves.step, artifact.block_n / 2)
                          : make_tensor_map(p.dtype, p.b, columns, p.k, p.b_row, artifact.block_k);
  return stacked(stacked(b, 2, halves.apart), p.groups, p.b_group);
}

}  // namespace gg
