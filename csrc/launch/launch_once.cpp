#include "launch/launch_once.hpp"

#include "driver/gil.hpp"
#include "driver/module.hpp"

namespace gg {

void launch_once(const gg_artifact& artifact, const Device& device, unsigned grid, const gg_arguments& arguments,
                 const Framework& framework, CUstream stream) {
  const LoadedKernel& kernel = load(artifact, device);
  const CurrentContext current(device);
  const WithoutGil unlocked;
  launch(artifact, kernel, device, grid, stream, arguments);
  if (framework.synchronous()) {
    driver().check(driver().cuStreamSynchronize(stream), "cuStreamSynchronize", artifact.name);
  }
}

}  // namespace gg
