// A launch of a kernel that multiplies nothing: no choice, no record, only arguments.
#pragma once

#include <vector>

#include "arrays/tensor.hpp"
#include "driver/driver.hpp"
#include "driver/module.hpp"

namespace gg {

// Loads the artifact and launches it on the device's own context. Waits for it only where the framework cannot order
// its own work behind the stream.
void launch_once(const gg_artifact& artifact, const Device& device, unsigned grid, const gg_arguments& arguments,
                 const Framework& framework, CUstream stream);

// The same for launches that are made ready once and then repeated: the kernel is loaded here.
class RepeatedLaunch {
 public:
  RepeatedLaunch(const gg_artifact& artifact, const Device& device, unsigned grid, const gg_arguments& arguments,
                 const Framework& framework);
  void run(CUstream stream) const;
  const gg_artifact& artifact() const { return *artifact_; }
  std::vector<const gg_artifact*> artifacts() const { return {artifact_}; }

 private:
  const gg_artifact* artifact_;
  const LoadedKernel* kernel_;
  const Device* device_;
  const Framework* framework_;
  unsigned grid_;
  gg_arguments arguments_;
};

}  // namespace gg
