// The expected work of a grouped product: the device has its sizes, the host has their sum at most.
#include <algorithm>
#include <cmath>

#include "arrays/dtype.hpp"
#include "forms/grouped_problem.hpp"

namespace gg {
namespace {

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

// What falls to how many groups, as far as the host knows: rows spread as counts do, and as the load of experts does
// besides, by a quarter of their mean; some groups stay empty, whose weights nobody reads.
struct Expected {
  double occupied, waves;  // groups that have rows; tiles of the CTA that has most
  double k_tile;           // what a k-tile takes of one with block_m rows
  double read_again;       // groups whose weights are read once more
};

// A fitted tile has as many rows as its group asks, and on average half a step more; at least 64 are multiplied. All of
// B's columns come whatever its height, and take as long as so many rows more (benchmarks/notes/skew.md).
double part_of_k_tile(const gg_artifact& artifact, double rows, double row_tiles) {
  if (!artifact.row_step) return 1;
  constexpr double least = 64, columns = 69;
  const double most = artifact.block_m, tile_rows = rows / row_tiles + artifact.row_step / 2.0;
  return (std::min(std::max(tile_rows, least), most) + columns) / (most + columns);
}

// Waves of fitted tiles: the kernel makes them lower, or cuts those of the last wave in two, so that it ends early.
// What is lost to it then is a fifth of a wave on average.
double fitted_waves(double tiles, double ctas) {
  constexpr double lost = 0.2, half = 0.65;
  return std::max(tiles / ctas + lost, half);
}

// How likely a group has more than one row tile, and in the last one at most half of its rows.
double short_share(const Estimate& rows, double block) {
  if (rows.deviation > 2 * block) return 0.5;
  const double scale = std::max(rows.deviation, 1e-9) * std::sqrt(2.0);
  const auto beyond = [&](double count) { return 0.5 * std::erfc((count + 0.5 - rows.mean) / scale); };
  const auto first = static_cast<int64_t>(std::max(1.0, std::floor(rows.least() / block)));
  const auto last = static_cast<int64_t>(std::ceil(rows.most() / block));
  double share = 0;
  for (int64_t tiles = first; tiles <= last; tiles++) {
    const double begin = static_cast<double>(tiles) * block;
    share += beyond(begin) - beyond(begin + block / 2);
  }
  return share;
}

// The share of groups whose weights are read once more. A short last row tile is done earlier, and its CTA runs ahead
// of those that read the same columns, where those of a cluster keep step. That costs nothing while L2 has all that the
// CTAs read: half of it, as an H200 and an H100 keep what both halves ask for twice. Counted for scales of blocks,
// whose kernels have clusters, and costs that are fitted with it (benchmarks/notes/fp8.md).
double read_again(const gg_artifact& artifact, const Estimate& rows, double row_tiles, double depth_bytes,
                  double ctas) {
  constexpr double fits = 25e6, spills = 45e6;
  if (artifact.scaling != GG_SCALING_BLOCK || artifact.split != 2 || artifact.cluster > 1) return 0;
  const double columns_at_once = ctas / std::min(row_tiles, static_cast<double>(artifact.raster));
  const double bytes_at_once = columns_at_once * artifact.block_n * depth_bytes;
  const double part = std::min(std::max((bytes_at_once - fits) / (spills - fits), 0.0), 1.0);
  return part > 0 ? part * short_share(rows, artifact.block_m) : 0;
}

Expected expected(const gg_artifact& artifact, int64_t group_count, int64_t row_count, int64_t columns,
                  double depth_bytes, double ctas) {
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
  const double k_tile = part_of_k_tile(artifact, mean, row_tiles.mean);
  if (artifact.row_step) return {occupied.mean, fitted_waves(tiles.mean, ctas), k_tile, 0};
  const double again = occupied.mean * read_again(artifact, each, row_tiles.mean, depth_bytes, ctas);
  return {occupied.mean, std::min(waves, std::ceil(most / ctas)), k_tile, again};
}

int64_t tiles_of(const GroupedProblem& p, int64_t rows, const gg_artifact& artifact) {
  return tiles_along(rows, artifact.block_m) * tiles_along(p.n, artifact.block_n);
}

// Of so many rows, which fall to the groups as the device says.
Work work_of_spread_rows(const GroupedProblem& p, const gg_artifact& artifact, double ctas, int64_t groups,
                         int64_t row_count) {
  const double depth_bytes = static_cast<double>(p.k) * element_bytes(p.dtype);
  const Expected expect = expected(artifact, groups, row_count, p.n, depth_bytes, ctas);
  const auto k_tiles = static_cast<double>(tiles_along(p.k, artifact.block_k));
  const auto rows = static_cast<double>(row_count), columns = static_cast<double>(p.n);
  const double bytes_in = ((expect.occupied + expect.read_again) * columns + rows) * depth_bytes;
  const auto outputs = static_cast<double>(p.output_columns() + (p.epilogue == GG_GATED_KEPT ? p.n : 0));
  return {expect.waves, expect.waves * k_tiles * expect.k_tile, bytes_in + rows * outputs * element_bytes(p.out_dtype)};
}

// Whether the kernel loads the outputs of a group of so much K to add to them, as addend_slots and LOADED_BYTES of
// aot/kernels/hopper/addends.py say. TMA adds otherwise.
bool loads_outputs(const gg_artifact& artifact, double depth) {
  constexpr double most_bytes = 2048;
  const bool has_slots = artifact.split == 2 && (!is_fp8(artifact.dtype) || artifact.block_n == 192);
  return has_slots && artifact.source == GG_SOURCE_ROWS && depth * element_bytes(artifact.dtype) <= most_bytes;
}

// How many times as long as written ones outputs that sums are added to pass through memory. L2 adds at 1.9 TB/s, read
// and written, where a copy moves 3 (an H100; benchmarks/notes/gradients.md).
double passes_of_outputs(const GroupedProblem& p, const gg_artifact& artifact, double depth) {
  if (!p.accumulates) return 1;
  return loads_outputs(artifact, depth) ? 2 : 2 * 3 / 1.9;
}

// k-tiles of a tile that has so much of K. One that is stored in quarters during the next one's first k-tiles has four
// at least: those past K are zeros (`make_ragged_k_tiling` of aot/kernels/hopper/ragged_k_consumers.py).
double k_tiles_of_part(const gg_artifact& artifact, double depth) {
  const bool pingpong = artifact.consumers == 2 && artifact.split == 1;
  const bool in_16_bits = !is_fp8(artifact.dtype) && artifact.out_dtype != GG_FP32;
  const bool is_overlapped = in_16_bits && artifact.slices == 4 && !pingpong;
  return std::max(is_overlapped ? 4.0 : 1.0, std::ceil(depth / artifact.block_k));
}

}  // namespace

Work work_of_m_ends(const GroupedProblem& p, const gg_artifact& artifact, double ctas) {
  // A batch-invariant choice sees a size at which tiles of every height have work.
  const int64_t seen_groups = p.batch_invariant ? invariant_groups : p.groups;
  return work_of_spread_rows(p, artifact, ctas, seen_groups, p.predicted_rows());
}

// All groups have about as much of K.
Work work_of_k_ends(const GroupedProblem& p, const gg_artifact& artifact, double ctas) {
  const auto groups = static_cast<double>(std::max<int64_t>(p.groups, 1)), parts = static_cast<double>(p.part_count());
  const double waves = std::ceil(groups * parts * static_cast<double>(tiles_of(p, p.m, artifact)) / ctas);
  const double depth = std::ceil(static_cast<double>(p.k) / groups / parts);
  const double k_tiles = k_tiles_of_part(artifact, depth);
  const auto rows = static_cast<double>(p.m), columns = static_cast<double>(p.n);
  const double bytes_in = (rows + columns) * static_cast<double>(p.k) * element_bytes(p.dtype);
  const double bytes_out = groups * parts * rows * columns * element_bytes(p.out_dtype);
  return {waves, waves * k_tiles, bytes_in + bytes_out * passes_of_outputs(p, artifact, depth)};
}

// A batch-invariant choice is the same with counts and without: for rows that fall to the groups as they may.
Work work_of_stack(const GroupedProblem& p, const gg_artifact& artifact, double ctas) {
  const int64_t seen_groups = p.batch_invariant ? invariant_groups : std::max<int64_t>(p.groups, 1);
  const bool is_spread = p.batch_invariant || p.ragged != 0;
  if (is_spread) return work_of_spread_rows(p, artifact, ctas, seen_groups, p.predicted_rows());
  const auto groups = static_cast<double>(seen_groups);
  const double waves = std::ceil(groups * static_cast<double>(tiles_of(p, p.m, artifact)) / ctas);
  const auto k_tiles = static_cast<double>(tiles_along(p.k, artifact.block_k));
  const auto rows = static_cast<double>(p.m), columns = static_cast<double>(p.n), depth = static_cast<double>(p.k);
  const double bytes_in = (rows + columns) * depth * element_bytes(p.dtype);
  const double bytes_out = rows * static_cast<double>(p.output_columns()) * element_bytes(p.out_dtype);
  return {waves, waves * k_tiles, groups * (bytes_in + bytes_out)};
}

}  // namespace gg
