#include "launch/launch.hpp"

#include <algorithm>
#include <string>

#include "driver/error.hpp"
#include "launch/plan_memory.hpp"
#include "launch/upload.hpp"

namespace gg {
namespace {

constexpr int64_t max_tiles = int64_t{1} << 30;  // kernels count in 32 bits, and step past the last by a grid

// CTAs of the kernel that the device holds at once, in whole clusters.
unsigned resident_ctas_of(const gg_artifact& artifact, const LoadedKernel& kernel, const Device& device) {
  const int clusters = kernel.blocks_per_multiprocessor * device.multiprocessors / artifact.cluster;
  return static_cast<unsigned>(std::max(clusters, 1) * artifact.cluster);
}

// Fitted tiles may be lower than block_m, and then more, for CTAs that `tiles` has no work for. Where CTAs cannot list
// theirs, as many again follow when those are done.
unsigned grid_for(const gg_artifact& artifact, int64_t tiles, unsigned resident_ctas) {
  if (artifact.listed_tiles == 0 || tiles == 0) return static_cast<unsigned>(std::min<int64_t>(tiles, resident_ctas));
  const int64_t listed = int64_t{artifact.listed_tiles} * resident_ctas;
  return static_cast<unsigned>((tiles + listed - 1) / listed * resident_ctas);
}

void check_tiles(const Problem& problem, int64_t tiles, const gg_artifact& artifact) {
  if (tiles <= max_tiles) return;
  throw ValueError(std::string(problem.function()) + ": the " + problem.noun() + " has " + std::to_string(tiles) +
                   " output tiles of " + std::to_string(artifact.block_m) + "x" + std::to_string(artifact.block_n) +
                   ", one call takes " + std::to_string(max_tiles) + "; split the " + problem.noun());
}

// A framework that does not order its work behind the stream gets the memory back now.
void wait_for_memory(const Device& device, CUstream stream) {
  const CurrentContext current(device);
  const WithoutGil unlocked;
  driver().cuStreamSynchronize(stream);
}

}  // namespace

Launch::Launch(const Problem& problem, const Choice& choice, const Device& device, const Framework& framework,
               pybind11::handle like, CUstream stream)
    : device_(&device),
      artifact_(choice.artifact),
      kernel_(&load(*choice.artifact, device)) {
  const int64_t tiles = problem.tile_bound(*artifact_);
  check_tiles(problem, tiles, *artifact_);
  resident_ctas_ = resident_ctas_of(*artifact_, *kernel_, device);
  grid_ = grid_for(*artifact_, tiles, resident_ctas_);
  record_ = record_on(device, problem, *artifact_);
  problem.write_sizes(arguments_);
  arguments_.tiles = static_cast<int32_t>(tiles);

  const bool fits_parameters = record_.size() <= static_cast<size_t>(artifact_->word_capacity);
  if (fits_parameters) {
    arguments_.list_words = record_.words.get();
    arguments_.list_word_count = static_cast<uint32_t>(record_.size());
  }
  allocate(fits_parameters ? 0 : record_.size() * sizeof(uint64_t), framework, like);
  if (fits_parameters) return;
  try {
    upload(record_, arguments_.problems, device, stream);
  } catch (...) {  // the first of several launches may have been given to the stream
    keep_call_memory(memory_, framework.pools_captures(), device, stream);
    if (framework.synchronous()) wait_for_memory(device, stream);
    throw;
  }
}

void Launch::allocate(size_t record_bytes, const Framework& framework, pybind11::handle like) {
  uint64_t address = 0;
  if (record_bytes > 0) {
    memory_.push_back(framework.scratch(like, record_bytes, &address));
    arguments_.problems = address;
  }
  if (artifact_->scratch_bytes > 0) {
    const size_t bytes = size_t{grid_} * static_cast<size_t>(artifact_->scratch_bytes);
    memory_.push_back(framework.scratch(like, bytes, &address));
    arguments_.global_scratch = address;
  }
}

}  // namespace gg
