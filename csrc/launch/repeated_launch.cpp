#include "launch/repeated_launch.hpp"

#include <map>
#include <string>
#include <utility>

#include "driver/error.hpp"

namespace gg {

RepeatedLaunch::RepeatedLaunch(const gg_artifact& artifact, const Device& device, unsigned grid,
                               const gg_arguments& arguments)
    : artifact_(&artifact),
      kernel_(&load(artifact, device)),
      device_(&device),
      grid_(grid),
      arguments_(arguments) {
  if (artifact.scratch_bytes == 0) return;
  throw ArtifactError(std::string(artifact.name) + " wants scratch memory, which kernels of its form are not given");
}

void wait_for_launches(CUstream stream) {
  const CUresult result = driver().cuStreamSynchronize(stream);
  if (result != CUDA_SUCCESS) driver().check(result, "cuStreamSynchronize", "waiting for the launches of a call");
}

// Daemon threads may come here at exit: the map is never destroyed.
std::mutex& turn_on(const Device& device, CUstream stream) {
  static auto& turns = *new std::map<std::pair<int, CUstream>, std::mutex>;
  static std::mutex guard;
  const std::lock_guard<std::mutex> lock(guard);
  return turns[{device.ordinal, stream}];
}

}  // namespace gg
