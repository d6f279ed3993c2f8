// Whose figures the tables hold, and how many times as long what they time takes on another GPU.
#pragma once

#include <string>

struct gg_artifact;

namespace gg {

struct Device;

// From a GPU that tables were measured on to a device: factors of time, 1 where a fact is not known.
struct Scale {
  double clock;   // by the clocks of the multiprocessors
  double tensor;  // by the tensor rates of a multiprocessor; by the clocks where that of the device is not known
  double memory;  // by the memory rates
  double tensor_us_per_flop;  // what a multiprocessor of the measured GPU needs at the rate that kernels reach
};

// Works out `gpu` and `scales` from the other facts of the device. Once for each device, not for each call.
void compare_with_measured(Device& device);

// The figures of an artifact that a device's predictions start from, and the GPU that they are of: index into gg_gpus.
struct Cost {
  double launch_us, tile_us, step_us, stream_gb_s;  // 0 where never measured
  int gpu;                                          // -1: the architecture was measured on no GPU
};

// Those of this very GPU where it was measured, else those of the reference GPU of the architecture.
Cost cost_of(const gg_artifact& artifact, const Device& device);

// From the GPU that a cost is of; 1 on that GPU itself.
const Scale& scale_for(const Cost& cost, const Device& device);

// For explain: whose figures a prediction of the artifact's time is made from, and by what they were scaled.
std::string basis(const gg_artifact& artifact, const Device& device);

}  // namespace gg
