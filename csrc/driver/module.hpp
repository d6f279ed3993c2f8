// Cubins in: from an embedded artifact to a kernel that a device can launch.
#pragma once

#include "abi/artifact.h"
#include "driver/driver.hpp"

namespace gg {

// An artifact made ready on one device.
struct LoadedKernel {
  CUfunction function;
  int blocks_per_multiprocessor;  // how many CTAs of it one multiprocessor holds, at least 1
  bool from_ptx;                  // the driver compiled the PTX, because no cubin fits this GPU
};

// Which image of the artifact this device can run, if any. A cubin for sm 80..89 runs on the same major and an
// equal or later minor version; from 90 on, only on its own. PTX (sm_80) runs on any GPU from 8.0 on.
enum class ImageKind { none, cubin, ptx };
ImageKind image_for(const gg_artifact& artifact, const Device& device);

// The artifact on the device, loaded at the first call and remembered for the life of the process. The fast path takes
// no lock. A failure is thrown and not remembered. Before the driver sees an image its sha256 is checked, after, where
// the driver tells them, its parameter offsets and sizes against the launcher's (both ArtifactError).
// Safe in a thread that is capturing a stream, and from many threads at once. Call with the GIL held; it is released
// while the driver works, and never taken while a lock is held.
const LoadedKernel& load(const gg_artifact& artifact, const Device& device);

// One launch of a loaded kernel, on the device's context, which is current.
void launch(const gg_artifact& artifact, const LoadedKernel& kernel, const Device& device, unsigned grid,
            CUstream stream, const gg_arguments& arguments);

// The sha256 of an image as 64 hexadecimal digits, computed by Python's hashlib. Needs the GIL.
std::string sha256(const gg_image& image);

}  // namespace gg
