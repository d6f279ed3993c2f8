// A kernel with its arguments, ready to be launched, again and again; and how the launches of a call are given to a
// stream.
#pragma once

#include <mutex>

#include "arrays/tensor.hpp"
#include "driver/driver.hpp"
#include "driver/gil.hpp"
#include "driver/module.hpp"
#include "driver/retired.hpp"

namespace gg {

// A launch of a kernel that multiplies nothing: no choice, no record, only arguments.
class RepeatedLaunch {
 public:
  // Loads the kernel.
  RepeatedLaunch(const gg_artifact& artifact, const Device& device, unsigned grid, const gg_arguments& arguments);

  // Within launch_in_order.
  void run(CUstream stream) const { launch(*artifact_, *kernel_, *device_, grid_, stream, arguments_); }

  const gg_artifact& artifact() const { return *artifact_; }

 private:
  const gg_artifact* artifact_;
  const LoadedKernel* kernel_;
  const Device* device_;
  unsigned grid_;
  gg_arguments arguments_;
};

void wait_for_launches(CUstream stream);

// Calls `run`, which gives the stream all launches of a call, on the device's own context and with the GIL released:
// once for all of them. Waits for them only where the framework cannot order its own work behind the stream, also for
// those before one that failed: their memory goes back to the framework now.
template <typename Run>
void launch_in_order(const Device& device, const Framework& framework, CUstream stream, const Run& run) {
  release_retired();
  const CurrentContext current(device);
  const WithoutGil unlocked;
  if (!framework.synchronous()) return run();
  try {
    run();
  } catch (...) {
    driver().cuStreamSynchronize(stream);
    throw;
  }
  wait_for_launches(stream);
}

// Of threads that share a stream: one at a time.
std::mutex& turn_on(const Device& device, CUstream stream);

// The same for launches that hand memory over to each other which other calls use too: a workspace, what a Plan keeps,
// an output that is activated in place. Those that other threads give the stream lie before all of them, or behind.
template <typename Run>
void launch_in_turn(const Device& device, const Framework& framework, CUstream stream, const Run& run) {
  launch_in_order(device, framework, stream, [&] {
    const std::lock_guard<std::mutex> turn(turn_on(device, stream));
    run();
  });
}

}  // namespace gg
