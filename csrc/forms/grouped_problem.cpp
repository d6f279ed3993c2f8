#include "forms/grouped_problem.hpp"

#include <algorithm>
#include <cmath>

#include "arrays/dtype.hpp"
#include "forms/table_key.hpp"

namespace gg {
namespace {

// Of A's and C's descriptors, which count a group's rows back from 2^30 (see grouped_record.cpp): elements, and rows.
constexpr int64_t row_stride_limit = int64_t{1} << 33, row_limit = int64_t{1} << 30;

// A count of which the mean is known, and how far it is from that.
struct Estimate {
  double mean, deviation;

  // Counts further from the mean than these are too rare to plan for.
  double least() const { return mean - 4 * deviation; }
  double most() const { return mean + 4 * deviation; }
};

// ceil(count / block), at least 1, of a count that is normally distributed, with the continuity correction of a half.
Estimate blocks_of(const Estimate& count, double block) {
  // Over many blocks the last one's part is spread evenly: half of it, 0.29 to either side.
  const double spread = count.deviation / block;
  if (spread > 2) return {count.mean / block + 0.5, std::sqrt(spread * spread + 0.29 * 0.29)};
  const double scale = std::max(count.deviation, 1e-9) * std::sqrt(2.0);
  double passed = std::max(1.0, std::floor(count.least() / block));
  double mean = passed, square = passed * passed;
  for (;; passed++) {
    const double chance = 0.5 * std::erfc((passed * block + 0.5 - count.mean) / scale);
    if (chance < 1e-6) break;
    mean += chance;
    square += (2 * passed + 1) * chance;
  }
  return {mean, std::sqrt(std::max(0.0, square - mean * mean))};
}

// Rows by an index are copied by 16 bytes, at offsets that 32 bits hold in that unit.
void restrict_indexed(Guarantee (&of_a)[2], int64_t rows, int64_t row_stride, int bytes) {
  int64_t all;  // bytes, which strides of arrays that are nowhere may overflow
  const bool counted = !__builtin_mul_overflow(rows, row_stride, &all) && !__builtin_mul_overflow(all, bytes, &all);
  of_a[0].described &= of_a[0].vectorized && counted && all < (int64_t{1} << 36) - 16;
  of_a[1] = {};
}

// Gate and up are each a matrix: with N contiguous, up starts a half behind gate.
void restrict_gated(Guarantee (&of_b)[2], int64_t half, int bytes) {
  of_b[0].vectorized &= fills_16_bytes(half, bytes);
  of_b[0].described &= fills_16_bytes(half, bytes);
}

// What is kept is written as two outputs, gate and up, each as C is.
void restrict_kept(Guarantee& of_c, const Activation& activation, const Guarantee& of_half) {
  of_c.unit &= of_half.unit;
  of_c.vectorized &= of_half.vectorized && activation.fusible();
  of_c.described &= of_half.described && activation.fusible() && activation.kept_row < row_stride_limit;
}

// What falls to how many groups, as far as the host knows: rows spread as counts do, and as the load of experts does
// besides, by a quarter of their mean; some groups stay empty, whose weights nobody reads.
struct Expected {
  double occupied, waves;  // groups that have rows; tiles of the CTA that has most
};

Expected expected(const gg_artifact& artifact, int64_t group_count, int64_t row_count, int64_t columns, double ctas) {
  const double groups = static_cast<double>(std::max<int64_t>(group_count, 1));
  const double rows = static_cast<double>(std::max<int64_t>(row_count, 1));
  const double share = 1 - std::pow(1 - 1 / groups, rows);
  const Estimate occupied{groups * share, std::sqrt(groups * share * (1 - share))};
  const double mean = rows / occupied.mean;
  const Estimate each{mean, std::sqrt((mean + mean * mean / 16) * (1 - 1 / groups))};
  const Estimate row_tiles = blocks_of(each, artifact.block_m);
  const double column_tiles = static_cast<double>(tiles_along(columns, artifact.block_n));
  const double deviation =
      std::hypot(occupied.deviation * row_tiles.mean, std::sqrt(occupied.mean) * row_tiles.deviation);
  const Estimate tiles{occupied.mean * row_tiles.mean * column_tiles, column_tiles * deviation};
  // A normal distribution reaches counts that the groups cannot have, such as more tiles than groups of few rows.
  const double least_row_tiles = std::max(1.0, std::ceil(each.least() / artifact.block_m));
  const double least = std::max(1.0, std::ceil(occupied.least())) * least_row_tiles * column_tiles;
  const double most = std::min(groups, rows) * std::ceil(each.most() / artifact.block_m) * column_tiles;
  const double waves = std::max(blocks_of(tiles, ctas).mean, std::ceil(least / ctas));
  return {occupied.mean, std::min(waves, std::ceil(most / ctas))};
}

}  // namespace

void GroupedProblem::complete() {
  // One row has no stride that could break a guarantee; but the kernel is not to depend on that either.
  const int64_t seen_m = batch_invariant ? std::max<int64_t>(m, 2) : m;
  const int64_t seen_a = batch_invariant ? std::max<int64_t>(rows_of_a(), 2) : rows_of_a();
  const int64_t columns = output_columns();
  // The stride to a second row, which is not there, is what a packed matrix would have.
  if (rows_of_a() == 1 && a_col == 1) a_row = std::max(a_row, k);
  if (m == 1 && c_col == 1) c_row = std::max(c_row, columns);
  if (m == 1) activation.kept_row = std::max(activation.kept_row, n);
  free_strides(seen_a, k, a_row, a_col);
  free_strides(k, n, b_row, b_col);
  free_strides(seen_m, columns, c_row, c_col);
  if (groups <= 1) b_group = std::max(b_row, b_col);

  const int bytes = element_bytes(dtype), out_bytes = element_bytes(out_dtype);
  Guarantee of_a[2] = {guarantee(a, k, a_col, seen_a, a_row, bytes), guarantee(a, seen_a, a_row, k, a_col, bytes)};
  Guarantee of_b[2] = {guarantee(b, n, b_col, k, b_row, bytes), guarantee(b, k, b_row, n, b_col, bytes)};
  for (Guarantee& stack : of_b) {
    stack.vectorized &= fills_16_bytes(b_group, bytes);
    stack.described &= is_describable(b_group, bytes);
  }
  Guarantee of_c = guarantee(c, columns, c_col, seen_m, c_row, out_bytes);
  of_a[0].described &= a_row < row_stride_limit;
  if (source == GG_SOURCE_INDEXED) restrict_indexed(of_a, rows_of_a(), a_row, bytes);
  if (epilogue != GG_LINEAR) restrict_gated(of_b, n / 2, bytes);
  of_c.described &= c_row < row_stride_limit && m <= row_limit;
  if (epilogue == GG_GATED_KEPT) {
    restrict_kept(of_c, activation, guarantee(activation.kept, n / 2, 1, seen_m, activation.kept_row, out_bytes));
  }
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
  }
  if (index.data) all.source = GG_SOURCE_INDEXED;
  all.complete();
  return all;
}

void GroupedProblem::set_output(const Tensor& out) {
  c = out.data, c_row = out.stride[0], c_col = out.stride[1];
  complete();
}

// The key of a plain product, mixed with what else the kernel does. A row was measured for a number of rows, on which
// no batch-invariant choice may depend.
std::optional<uint64_t> GroupedProblem::table_key() const {
  if (batch_invariant || groups == 0 || m == 0) return std::nullopt;
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
                            static_cast<uint64_t>(epilogue)};
  uint64_t packed = 0;
  for (const uint64_t fact : facts) packed = packed << 8 | fact;
  return ChoiceKey{static_cast<uint64_t>(m), static_cast<uint64_t>(groups), static_cast<uint64_t>(n),
                   static_cast<uint64_t>(k), packed};
}

Work GroupedProblem::work(const gg_artifact& artifact, double ctas) const {
  // A batch-invariant choice sees a size at which tiles of every height have work.
  const int64_t seen_groups = batch_invariant ? invariant_groups : groups, seen_m = predicted_rows();
  const Expected expect = expected(artifact, seen_groups, seen_m, n, ctas);
  const auto k_tiles = static_cast<double>(tiles_along(k, artifact.block_k));
  const auto rows = static_cast<double>(seen_m), columns = static_cast<double>(n);
  const double bytes_in = (expect.occupied * columns + rows) * static_cast<double>(k) * element_bytes(dtype);
  const auto outputs = static_cast<double>(output_columns() + (epilogue == GG_GATED_KEPT ? n : 0));
  return {expect.waves, expect.waves * k_tiles, bytes_in + rows * outputs * element_bytes(out_dtype)};
}

// Rows past the last end are one more group.
int64_t GroupedProblem::tile_bound(const gg_artifact& artifact) const {
  const int64_t parts = std::min(groups + 1, m);
  return (parts + (m - parts) / artifact.block_m) * ceil_div(n, artifact.block_n);
}

const char* GroupedProblem::model_words() const {
  if (!batch_invariant) return Problem::model_words();
  return "the least predicted time of 64 groups of 256 rows, whatever the batch, for batch_invariant";
}

}  // namespace gg
