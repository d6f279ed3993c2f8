#include "cost.hpp"

#include <algorithm>
#include <cmath>

#include "dtype.hpp"
#include "gpus.hpp"

namespace gg {
namespace {

// Rough rates of one multiprocessor, for variants that nobody has measured yet: 16-bit products and L2 bytes a
// microsecond, on GPUs such as an A100 and an H200.
struct Rates {
  double flop_per_us, l2_bytes_per_us;
};
constexpr Rates ampere{1.7e6, 3.0e4}, hopper{4.5e6, 4.0e4};

double element_cost(const gg_artifact& artifact) {
  if (artifact.alignment >= 16) return 1;
  return artifact.layout == GG_STRIDED ? 6 : 4;
}

// CTAs of the artifact that one multiprocessor holds, from its own registers, shared memory and threads.
int blocks_per_multiprocessor(const gg_artifact& artifact, const Device& device) {
  constexpr int register_file = 64 * 1024, threads_limit = 2048, block_reserve = 1024;
  const int shared_bytes = std::min(device.shared_bytes_per_block, 1 << 30);  // a description may say any number
  const int by_shared = (shared_bytes + block_reserve) / (artifact.shared_bytes + block_reserve);
  const int by_registers = register_file / std::max(1, artifact.registers * artifact.threads);
  return std::max(1, std::min({by_shared, by_registers, threads_limit / std::max(1, artifact.threads)}));
}

struct TileCost {
  double launch_us, tile_us, step_us;
};

// Of a step of BLOCK_K. e4m3 counts half: its products take half the time.
double flop_of_step(const gg_artifact& artifact) {
  return static_cast<double>(element_bytes(artifact.dtype)) * artifact.block_m * artifact.block_n * artifact.block_k;
}

TileCost rough_cost(const gg_artifact& artifact, int blocks) {
  const Rates& rate = artifact.sm >= 90 ? hopper : ampere;
  const double element = element_bytes(artifact.dtype);
  const double bytes = element * (artifact.block_m + artifact.block_n) * artifact.block_k;
  const double flop_us = flop_of_step(artifact) / rate.flop_per_us;
  return {2.0, 1.0, std::max(flop_us, bytes / rate.l2_bytes_per_us) * blocks * element_cost(artifact)};
}

// On another GPU than the measured one a step takes as long as the slower of its two parts: what the tensor cores do of
// it goes by their rate, all of it goes by the clock. So a GPU with slow tensor cores slows large tiles down, and tiles
// of few rows, which wait for their operands, hardly.
TileCost tile_cost(const gg_artifact& artifact, int blocks, const Device& device) {
  const bool measured = artifact.step_us > 0;
  const TileCost cost =
      measured ? TileCost{artifact.launch_us, artifact.tile_us, artifact.step_us} : rough_cost(artifact, blocks);
  if (artifact.gpu == device.gpu) return cost;
  const Scale& scale = scale_for(artifact, device);
  const double tensor_us = std::min(cost.step_us, flop_of_step(artifact) * blocks * scale.tensor_us_per_flop);
  return {cost.launch_us, cost.tile_us * scale.clock, std::max(cost.step_us * scale.clock, tensor_us * scale.tensor)};
}

// A count of which the mean is known, and how far it is from that.
struct Estimate {
  double mean, deviation;
};

// ceil(count / block), at least 1, of a count that is normally distributed; between counts lies 1, hence the half.
Estimate blocks_of(const Estimate& count, double block) {
  // Over many blocks the last one's part is spread evenly: half of it, 0.29 to either side.
  const double spread = count.deviation / block;
  if (spread > 2) return {count.mean / block + 0.5, std::sqrt(spread * spread + 0.29 * 0.29)};
  const double scale = std::max(count.deviation, 1e-9) * std::sqrt(2.0);
  double passed = std::max(1.0, std::floor((count.mean - 4 * count.deviation) / block));
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
  double occupied, turns;  // groups that have rows; tiles of the CTA that has most
};

Expected expected(const gg_artifact& artifact, const Ragged& r, double ctas) {
  const double groups = static_cast<double>(std::max<int64_t>(r.groups, 1));
  const double rows = static_cast<double>(std::max<int64_t>(r.rows, 1));
  const double share = 1 - std::pow(1 - 1 / groups, rows), occupied = groups * share;
  const double each = rows / occupied;
  const double spread = std::sqrt((each + each * each / 16) * (1 - 1 / groups));
  const Estimate row_tiles = blocks_of({each, spread}, artifact.block_m);
  const double column_tiles = static_cast<double>(tiles_along(r.columns, artifact.block_n));
  const double variance =
      occupied * (1 - share) * row_tiles.mean * row_tiles.mean + occupied * row_tiles.deviation * row_tiles.deviation;
  const Estimate tiles{occupied * row_tiles.mean * column_tiles, column_tiles * std::sqrt(variance)};
  return {occupied, blocks_of(tiles, ctas).mean};
}

}  // namespace

// CTA 0 has the most work: it takes tiles 0, P, 2P, ... of a list that is sorted by falling K, P CTAs in all.
double predict_us(const gg_artifact& artifact, const Problem& problem, const Device& device) {
  const int blocks = blocks_per_multiprocessor(artifact, device);
  const int64_t ctas = static_cast<int64_t>(blocks) * device.multiprocessors;
  const TileCost cost = tile_cost(artifact, blocks, device);
  double us = cost.launch_us;
  int64_t next = 0, end = 0;
  for (const Run& run : problem.runs) {
    end += run.count * (tiles_along(run.m, artifact.block_m) * tiles_along(run.n, artifact.block_n));
    if (next >= end) continue;
    const int64_t turns = end - next <= ctas ? 1 : ceil_div(end - next, ctas);
    const int64_t steps = tiles_along(run.k, artifact.block_k);
    us += static_cast<double>(turns) * (cost.tile_us + static_cast<double>(steps) * cost.step_us);
    next += turns * ctas;
  }
  return us;
}

double predict_us(const gg_artifact& artifact, const Ragged& r, const Device& device) {
  const int blocks = blocks_per_multiprocessor(artifact, device);
  const Expected expect = expected(artifact, r, static_cast<double>(blocks) * device.multiprocessors);
  const TileCost cost = tile_cost(artifact, blocks, device);
  const double steps = static_cast<double>(tiles_along(r.depth, artifact.block_k));
  const double compute_us = expect.turns * (cost.tile_us + steps * cost.step_us);
  if (artifact.stream_gb_s <= 0) return cost.launch_us + compute_us;

  const double rows = static_cast<double>(r.rows), columns = static_cast<double>(r.columns);
  const double bytes_in = (expect.occupied * columns + rows) * static_cast<double>(r.depth) * element_bytes(r.dtype);
  const double bytes_out = rows * columns * element_bytes(r.out_dtype);
  const double memory_us = (bytes_in + bytes_out) / (artifact.stream_gb_s * 1e3) * scale_for(artifact, device).memory;
  // Where both take about as long they get into each other's way: of the sums tried, that of cubes was nearest.
  return cost.launch_us + std::cbrt(std::pow(compute_us, 3) + std::pow(memory_us, 3));
}

}  // namespace gg
