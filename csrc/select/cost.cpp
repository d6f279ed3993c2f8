#include "select/cost.hpp"

#include <algorithm>
#include <cmath>

#include "arrays/dtype.hpp"
#include "driver/gpus.hpp"

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

// Of a step of BLOCK_K. e4m3 counts half: its products take half the time.
double flop_of_step(const gg_artifact& artifact) {
  return static_cast<double>(element_bytes(artifact.dtype)) * artifact.block_m * artifact.block_n * artifact.block_k;
}

// In place of what was never measured; no weights are streamed by it.
Cost rough_cost(const gg_artifact& artifact, int blocks, int gpu) {
  const Rates& rate = artifact.sm >= 90 ? hopper : ampere;
  const double element = element_bytes(artifact.dtype);
  const double bytes = element * (artifact.block_m + artifact.block_n) * artifact.block_k;
  const double flop_us = flop_of_step(artifact) / rate.flop_per_us;
  const double step_us = std::max(flop_us, bytes / rate.l2_bytes_per_us) * blocks * element_cost(artifact);
  return {2.0, 1.0, step_us, 0, gpu};
}

// On another GPU than the measured one a step takes as long as the slower of its two parts: what the tensor cores do of
// it goes by their rate, all of it goes by the clock. So a GPU with slow tensor cores slows large tiles down, and tiles
// of few rows, which wait for their operands, hardly.
Cost scaled_cost(const gg_artifact& artifact, int blocks, const Device& device) {
  Cost cost = cost_of(artifact, device);
  if (cost.step_us <= 0) cost = rough_cost(artifact, blocks, cost.gpu);
  if (cost.gpu == device.gpu) return cost;
  const Scale& scale = scale_for(cost, device);
  const double tensor_us = std::min(cost.step_us, flop_of_step(artifact) * blocks * scale.tensor_us_per_flop);
  cost.tile_us *= scale.clock;
  cost.step_us = std::max(cost.step_us * scale.clock, tensor_us * scale.tensor);
  cost.stream_gb_s /= scale.memory;
  return cost;
}

}  // namespace

double predict_us(const gg_artifact& artifact, const Problem& problem, const Device& device) {
  const int blocks = blocks_per_multiprocessor(artifact, device);
  const Work work = problem.work(artifact, static_cast<double>(blocks) * device.multiprocessors);
  const Cost cost = scaled_cost(artifact, blocks, device);
  const double compute_us = work.tiles * cost.tile_us + work.k_tiles * cost.step_us;
  if (cost.stream_gb_s <= 0 || work.bytes == 0) return cost.launch_us + compute_us;
  const double memory_us = work.bytes / (cost.stream_gb_s * 1e3);
  // Where both take about as long they get into each other's way: of the sums tried, that of cubes was nearest.
  return cost.launch_us + std::cbrt(std::pow(compute_us, 3) + std::pow(memory_us, 3));
}

}  // namespace gg
