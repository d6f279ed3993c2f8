#include "launch.hpp"

#include <algorithm>
#include <string>

#include "error.hpp"
#include "gil.hpp"
#include "ragged_words.hpp"
#include "upload.hpp"

namespace gg {
namespace {

constexpr int64_t max_tiles = int64_t{1} << 30;  // kernels count in 32 bits, and step past the last by a grid

// On the device's own context, with the GIL released.
void launch_and_order(const gg_artifact& artifact, const LoadedKernel& kernel, const Device& device,
                      const Framework& framework, unsigned grid, CUstream stream, const gg_arguments& arguments) {
  const CurrentContext current(device);
  const WithoutGil unlocked;
  launch(artifact, kernel, device, grid, stream, arguments);
  if (!framework.synchronous()) return;
  driver().check(driver().cuStreamSynchronize(stream), "cuStreamSynchronize", artifact.name);
}

// CTAs of the kernel that the device holds at once.
unsigned slots_for(const LoadedKernel& kernel, const Device& device) {
  return static_cast<unsigned>(kernel.blocks_per_multiprocessor * device.multiprocessors);
}

unsigned grid_for(int64_t tiles, unsigned slots) { return static_cast<unsigned>(std::min<int64_t>(tiles, slots)); }

void check_tiles(const char* function, const char* product, int64_t tiles, const gg_artifact& artifact) {
  if (tiles <= max_tiles) return;
  throw ValueError(std::string(function) + ": the " + product + " has " + std::to_string(tiles) + " output tiles of " +
                   std::to_string(artifact.block_m) + "x" + std::to_string(artifact.block_n) + ", one call takes " +
                   std::to_string(max_tiles) + "; split the " + product);
}

}  // namespace

ListLaunch::ListLaunch(const ListProblem& problem, const Choice& choice, const Device& device,
                       const Framework& framework, pybind11::handle like, CUstream stream)
    : device_(&device),
      framework_(&framework),
      artifact_(choice.artifact),
      kernel_(&load(*choice.artifact, device)) {
  const int64_t tiles = problem.tile_bound(*artifact_);
  check_tiles("group_gemm", "list", tiles, *artifact_);
  slots_ = slots_for(*kernel_, device);
  grid_ = grid_for(tiles, slots_);
  list_ = write_list(problem, *artifact_);
  arguments_.groups = static_cast<int32_t>(problem.groups.size());
  arguments_.tiles = static_cast<int32_t>(tiles);

  const bool fits_parameters = list_.size() <= static_cast<size_t>(artifact_->word_capacity);
  if (fits_parameters) {
    arguments_.list_words = list_.words.get();
    arguments_.list_word_count = static_cast<uint32_t>(list_.size());
  }
  allocate(fits_parameters ? 0 : list_.size() * sizeof(uint64_t), like);
  if (!fits_parameters) upload(list_, arguments_.problems, device, stream);
}

void ListLaunch::allocate(size_t list_bytes, pybind11::handle like) {
  uint64_t address = 0;
  if (list_bytes > 0) {
    memory_.push_back(framework_->scratch(like, list_bytes, &address));
    arguments_.problems = address;
  }
  if (artifact_->scratch_bytes > 0) {
    const size_t bytes = size_t{grid_} * static_cast<size_t>(artifact_->scratch_bytes);
    memory_.push_back(framework_->scratch(like, bytes, &address));
    arguments_.global_scratch = address;
  }
}

void ListLaunch::run(CUstream stream) const {
  launch_and_order(*artifact_, *kernel_, *device_, *framework_, grid_, stream, arguments_);
}

void launch_ragged(const GroupedProblem& ragged, const Choice& choice, const Device& device, const Framework& framework,
                   CUstream stream) {
  const gg_artifact& artifact = *choice.artifact;
  const LoadedKernel& kernel = load(artifact, device);
  const int64_t tiles = ragged.tile_bound(artifact);
  check_tiles("grouped_mm", "product", tiles, artifact);
  uint64_t words[most_ragged_words];
  gg_arguments arguments{};
  arguments.list_words = words;
  arguments.list_word_count = static_cast<uint32_t>(write_ragged(ragged, artifact, words));
  arguments.groups = static_cast<int32_t>(ragged.groups);
  arguments.rows = static_cast<int32_t>(ragged.rows);
  arguments.columns = static_cast<int32_t>(ragged.columns);
  arguments.depth = static_cast<int32_t>(ragged.depth);
  const unsigned grid = grid_for(tiles, slots_for(kernel, device));
  launch_and_order(artifact, kernel, device, framework, grid, stream, arguments);
}

}  // namespace gg
