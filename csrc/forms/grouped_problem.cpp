#include "forms/grouped_problem.hpp"

#include <algorithm>
#include <limits>

#include "arrays/dtype.hpp"
#include "driver/tensor_map.hpp"
#include "forms/grouped_maps.hpp"
#include "forms/table_key.hpp"

namespace gg {
namespace {

// Of A's and C's descriptors, which count a group's rows back from 2^30 (see grouped_maps.cpp): elements, and rows.
constexpr int64_t row_stride_limit = int64_t{1} << 33, row_limit = int64_t{1} << 30;
// Of groups: aot/kernels/hopper/tile_list.py keeps an index beside eight other bits.
constexpr int64_t group_limit = int64_t{1} << 23;

// Rows by an index are copied by 16 bytes, at offsets that 32 bits hold in that unit, by a stride that they hold in
// elements; what is left of a row is counted in bytes.
void restrict_indexed(Guarantee& of_rows, int64_t rows, int64_t row_stride, int64_t row_size, int bytes) {
  int64_t all;  // bytes, which strides of arrays that are nowhere may overflow
  const bool counted = !__builtin_mul_overflow(rows, row_stride, &all) && !__builtin_mul_overflow(all, bytes, &all);
  of_rows.described &= of_rows.vectorized && counted && all < (int64_t{1} << 36) - 16;
  of_rows.described &= row_stride < (int64_t{1} << 32) && row_size < (int64_t{1} << 31) / bytes;
}

// Gate and up are each a matrix: with N contiguous, up starts a half behind gate. With K contiguous they are any number
// of elements apart, and so are columns of either.
void restrict_gated(Guarantee (&of_b)[2], const GroupedProblem& p, int bytes) {
  of_b[0].vectorized &= fills_16_bytes(p.n / 2, bytes);
  of_b[0].described &= fills_16_bytes(p.n / 2, bytes);
  const Halves halves = halves_of_b(p);
  of_b[1].described &= is_describable(halves.apart, bytes) && is_describable(halves.step, bytes);
}

// What is kept is written as two outputs, gate and up, each as C is.
void restrict_kept(Guarantee& of_c, const Activation& activation, const Guarantee& of_half) {
  of_c.unit &= of_half.unit;
  of_c.vectorized &= of_half.vectorized && activation.fusible();
  of_c.described &= of_half.described && activation.fusible() && activation.kept_row < row_stride_limit;
}

// z and its gradient are read and written as halves, gate and up, each as C is.
void restrict_gradient(Guarantee& of_c, const GroupedProblem& p, int64_t seen_m, int bytes) {
  const GradientRows& g = *p.gradient;
  const auto check = [&](uint64_t address, int64_t row, int64_t column) {
    const Guarantee of_half = guarantee(address, p.n, column, seen_m, row, bytes);
    of_c.unit &= of_half.unit;
    of_c.vectorized &= of_half.vectorized;
    of_c.described &= of_half.described && fills_16_bytes(p.n, bytes) && row < row_stride_limit;
  };
  check(g.z, g.z_row, g.z_col), check(g.dz, g.dz_row, g.dz_col);
}

// The matrices of a stack lie so many elements apart.
struct Stack {
  Guarantee* first;
  int count;
};

void restrict_stack(const Stack& stack, int64_t group_stride, int bytes) {
  for (int i = 0; i < stack.count; i++) {
    stack.first[i].vectorized &= fills_16_bytes(group_stride, bytes);
    stack.first[i].described &= is_describable(group_stride, bytes);
  }
}

void restrict_stack(Guarantee (&matrices)[2], int64_t group_stride, int bytes) {
  restrict_stack({matrices, 2}, group_stride, bytes);
}

// A group's K starts anywhere, so that nothing is known of the alignment along K, unless the caller promises it. TMA
// counts it back from 2^30, along a dimension that is not contiguous. So A has M contiguous and B has N contiguous, or
// elements are read one by one. Where groups start at multiples of a box, it may be one of a contiguous K.
void restrict_ragged_k(Guarantee (&of_a)[2], Guarantee (&of_b)[2], const GroupedProblem& p) {
  const bool by_boxes = static_cast<uint32_t>(p.k_alignment) % box_width(p.dtype) == 0;
  for (Guarantee* by_k : {&of_a[0], &of_b[1]}) by_k->vectorized = false, by_k->described &= by_boxes;
  of_a[1].described &= p.a_col < row_stride_limit && p.k <= row_limit;
  of_b[0].described &= p.b_row < row_stride_limit && p.k <= row_limit;
}

}  // namespace

// The stride to a second row, which is not there, is what a packed matrix would have.
void GroupedProblem::free_unused_strides() {
  // One row has no stride that could break a guarantee; but the kernel is not to depend on that either.
  const int64_t seen_m = batch_invariant ? std::max<int64_t>(m, 2) : m;
  const int64_t seen_a = batch_invariant ? std::max<int64_t>(rows_of_a(), 2) : rows_of_a();
  const int64_t a_columns = columns_of_a();
  if (rows_of_a() == 1 && a_col == 1) a_row = std::max(a_row, a_columns);
  if (m == 1 && c_col == 1) c_row = std::max(c_row, output_columns());
  if (m == 1) activation.kept_row = std::max(activation.kept_row, n);
  free_strides(seen_a, a_columns, a_row, a_col);
  free_strides(rows_of_b(), n, b_row, b_col);
  free_strides(seen_m, output_columns(), c_row, c_col);
  if (groups > 1) return;
  // Nor on the number of groups: a stride that a second one could have stays.
  const auto free_group = [this](int64_t& stride, int64_t row, int64_t col) {
    stride = std::max(batch_invariant ? stride : 0, std::max(row, col));
  };
  if (extents != GG_K_ENDS) free_group(b_group, b_row, b_col);
  if (extents == GG_M_COUNTS) free_group(a_group, a_row, a_col);
  if (has_output_stack() && part_count() == 1) free_group(c_group, c_row, c_col);
}

int64_t GroupedProblem::predicted_rows() const {
  if (batch_invariant) return invariant_rows;
  if (extents != GG_M_COUNTS) return m;
  return groups * (ragged != 0 ? std::max<int64_t>(m / room_of_a_row, 1) : m);
}

void GroupedProblem::complete() {
  free_unused_strides();
  const int64_t seen_m = batch_invariant ? std::max<int64_t>(m, 2) : m;
  const int64_t seen_a = batch_invariant ? std::max<int64_t>(rows_of_a(), 2) : rows_of_a();
  const int64_t columns = output_columns();
  const int bytes = element_bytes(dtype), out_bytes = element_bytes(out_dtype);
  const int64_t a_columns = columns_of_a(), b_rows = rows_of_b();
  Guarantee of_a[2] = {guarantee(a, a_columns, a_col, seen_a, a_row, bytes),
                       guarantee(a, seen_a, a_row, a_columns, a_col, bytes)};
  Guarantee of_b[2] = {guarantee(b, n, b_col, b_rows, b_row, bytes), guarantee(b, b_rows, b_row, n, b_col, bytes)};
  Guarantee of_c = guarantee(c, columns, c_col, seen_m, c_row, out_bytes);
  of_c.described &= c_row < row_stride_limit && m <= row_limit && groups < group_limit;
  if (extents == GG_K_ENDS) {
    restrict_ragged_k(of_a, of_b, *this);
  } else {
    restrict_stack(of_b, b_group, bytes);
    of_a[0].described &= a_row < row_stride_limit;
  }
  if (extents == GG_M_COUNTS) restrict_stack(of_a, a_group, bytes);
  if (has_output_stack()) restrict_stack({&of_c, 1}, c_group, out_bytes);
  if (source == GG_SOURCE_INDEXED && extents == GG_K_ENDS) {
    restrict_indexed(of_a[1], columns_of_a(), a_col, m, bytes);
  } else if (source == GG_SOURCE_INDEXED) {
    restrict_indexed(of_a[0], rows_of_a(), a_row, k, bytes);
    of_a[1] = {};
  }
  if (source == GG_SOURCE_INDEXED_B) restrict_indexed(of_b[0], rows_of_b(), b_row, n, bytes);
  if (epilogue == GG_GATED_GRADIENT) restrict_gradient(of_c, *this, seen_m, out_bytes);
  else if (epilogue != GG_LINEAR) restrict_gated(of_b, *this, bytes);
  if (epilogue == GG_GATED_KEPT) {
    restrict_kept(of_c, activation, guarantee(activation.kept, n / 2, 1, seen_m, activation.kept_row, out_bytes));
  }
  if (epilogue == GG_GATED_QUANTIZED) of_c.described &= activation.quantizable(n);
  guarantees = Guarantees{};
  guarantees.restrict(of_a, of_b, of_c, k > 0 && groups > 0);
}

GroupedProblem GroupedProblem::fused() const {
  GroupedProblem all = *this;
  if (activation.gated()) {
    // With N contiguous, columns in turns are read as they lie, and are neighbours in a tile. A single row of B has no
    // stride of its own: then N is contiguous if its columns are one behind the other.
    const bool n_contiguous = k > 1 ? b_row != 1 : k == 1 && b_col == 1;
    all.epilogue = activation.order == GG_INTERLEAVED && n_contiguous ? GG_GATED_PAIRS : GG_GATED;
    if (activation.kept != 0) all.epilogue = GG_GATED_KEPT;
    if (scale_c != 0) all.epilogue = GG_GATED_QUANTIZED;
  }
  if (index.data) all.source = GG_SOURCE_INDEXED;
  all.complete();
  return all;
}

void GroupedProblem::set_output(const Tensor& out) {
  const int64_t* strides = out.stride;
  c = out.data;
  if (has_output_stack()) c_group = *strides++;
  c_row = strides[0], c_col = strides[1];
  complete();
}

// The key of a plain product, mixed with what else the kernel does. A row was measured for a number of rows, on which
// no batch-invariant choice may depend. Products with scales by row or by block were not measured.
std::optional<uint64_t> GroupedProblem::table_key() const {
  if (batch_invariant || groups == 0 || m == 0 || extents != GG_M_ENDS) return std::nullopt;
  if (scaling != GG_SCALING_TENSOR) return std::nullopt;
  return signed_key(layer_key(groups, n, k, load_of(m, groups)), epilogue, source);
}

std::optional<ChoiceKey> GroupedProblem::choice_key() const {
  const uint64_t facts[] = {static_cast<uint64_t>(dtype),
                            static_cast<uint64_t>(out_dtype),
                            batch_invariant,
                            guarantees.unit_stride,
                            guarantees.vectorized,
                            guarantees.described,
                            static_cast<uint64_t>(extents) << 4 | static_cast<uint64_t>(source),
                            static_cast<uint64_t>(scaling) << 4 | static_cast<uint64_t>(epilogue)};
  uint64_t packed = 0;
  for (const uint64_t fact : facts) packed = packed << 8 | fact;
  const uint64_t of_device = static_cast<uint64_t>(splits) << 3 | static_cast<uint64_t>(has_all_scales()) << 2 |
                             static_cast<uint64_t>(accumulates) << 1 | static_cast<uint64_t>(ragged != 0);
  return ChoiceKey{static_cast<uint64_t>(m),
                   static_cast<uint64_t>(groups),
                   static_cast<uint64_t>(n),
                   static_cast<uint64_t>(k),
                   packed,
                   of_device};
}

Work GroupedProblem::work(const gg_artifact& artifact, double ctas) const {
  if (extents == GG_K_ENDS) return work_of_k_ends(*this, artifact, ctas);
  if (extents == GG_M_COUNTS) return work_of_stack(*this, artifact, ctas);
  return work_of_m_ends(*this, artifact, ctas);
}

ProblemRecord GroupedProblem::write_record(const gg_artifact& artifact) const {
  if (extents == GG_K_ENDS) return grouped_k_record(*this, artifact);
  if (extents == GG_M_COUNTS) return stack_record(*this, artifact);
  return grouped_record(*this, artifact);
}

void GroupedProblem::write_sizes(gg_arguments& arguments) const {
  arguments.groups = static_cast<int32_t>(groups);
  arguments.rows = static_cast<int32_t>(m);
  arguments.columns = static_cast<int32_t>(n);
  arguments.depth = static_cast<int32_t>(k);
}

// By ends of rows: rows past the last one are one more group. The tiles of a cluster may be columns of one row tile,
// and there as many as it has CTAs.
int64_t GroupedProblem::tile_bound(const gg_artifact& artifact) const {
  if (has_output_stack()) {
    const int64_t tiles = ceil_div(m, artifact.block_m) * ceil_div(n, artifact.block_n);
    int64_t all;  // of arrays that are nowhere, more than 64 bits count
    const bool counted = !__builtin_mul_overflow(groups * part_count(), tiles, &all);
    return counted ? all : std::numeric_limits<int64_t>::max();
  }
  const int64_t parts = std::min(groups + 1, m);
  const int64_t columns = ceil_div(ceil_div(n, artifact.block_n), artifact.cluster) * artifact.cluster;
  return (parts + (m - parts) / artifact.block_m) * columns;
}

const char* GroupedProblem::ruled_out(const gg_artifact& artifact) const {
  if (artifact.addressing != GG_HOST_DESCRIPTORS) {
    return accumulates ? "it writes its sums, and adds them to nothing" : nullptr;
  }
  const bool reads_scales = extents == GG_K_ENDS && artifact.scaling == GG_SCALING_BLOCK;
  return reads_scales && !has_all_scales() ? "it reads scales of both operands, and one is left out" : nullptr;
}

const char* GroupedProblem::model_words() const {
  if (!batch_invariant) return Problem::model_words();
  return "the least predicted time of 64 groups of 256 rows, whatever the batch, for batch_invariant";
}

}  // namespace gg
