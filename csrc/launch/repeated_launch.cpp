#include "launch/repeated_launch.hpp"

#include <array>
#include <cstdint>
#include <string>

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

// Streams come and go, so several share a turn; no thread takes two at once. The default stream has two handles, 0 and
// 1. Daemon threads may come here at exit: nothing is ever destroyed.
std::mutex& turn_on(const Device& device, CUstream stream) {
  static auto& turns = *new std::array<std::mutex, 64>;
  auto handle = reinterpret_cast<uintptr_t>(stream);
  if (handle == 1) handle = 0;
  const uint64_t mixed = (handle + static_cast<uint64_t>(device.ordinal)) * 0x9E3779B97F4A7C15;
  return turns[mixed >> 58];
}

}  // namespace gg
