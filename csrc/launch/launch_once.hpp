// A launch of a kernel that multiplies nothing: no choice, no record, only arguments.
#pragma once

#include "arrays/tensor.hpp"
#include "driver/driver.hpp"

namespace gg {

// Loads the artifact and launches it on the device's own context. Waits for it only where the framework cannot order its
// own work behind the stream.
void launch_once(const gg_artifact& artifact, const Device& device, unsigned grid, const gg_arguments& arguments,
                 const Framework& framework, CUstream stream);

}  // namespace gg
