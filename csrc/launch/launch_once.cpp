#include "launch/launch_once.hpp"

#include "driver/gil.hpp"

namespace gg {
namespace {

void launch_loaded(const gg_artifact& artifact, const LoadedKernel& kernel, const Device& device, unsigned grid,
                   const gg_arguments& arguments, const Framework& framework, CUstream stream) {
  const CurrentContext current(device);
  const WithoutGil unlocked;
  launch(artifact, kernel, device, grid, stream, arguments);
  if (framework.synchronous()) {
    driver().check(driver().cuStreamSynchronize(stream), "cuStreamSynchronize", artifact.name);
  }
}

}  // namespace

void launch_once(const gg_artifact& artifact, const Device& device, unsigned grid, const gg_arguments& arguments,
                 const Framework& framework, CUstream stream) {
  launch_loaded(artifact, load(artifact, device), device, grid, arguments, framework, stream);
}

RepeatedLaunch::RepeatedLaunch(const gg_artifact& artifact, const Device& device, unsigned grid,
                               const gg_arguments& arguments, const Framework& framework)
    : artifact_(&artifact),
      kernel_(&load(artifact, device)),
      device_(&device),
      framework_(&framework),
      grid_(grid),
      arguments_(arguments) {}

void RepeatedLaunch::run(CUstream stream) const {
  launch_loaded(*artifact_, *kernel_, *device_, grid_, arguments_, *framework_, stream);
}

}  // namespace gg
