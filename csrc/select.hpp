// Which variant a problem list takes: a measured row if there is one, else the cheapest by a cost model.
#pragma once

#include <string>
#include <vector>

#include "driver.hpp"
#include "image.hpp"
#include "problem.hpp"

namespace gg {

struct Choice {
  const gg_artifact* artifact;
  ImageKind image;
  double predicted_us;
  bool tuned;  // from a measured row
};

// A variant that was looked at, for explain().
struct Considered {
  const gg_artifact* artifact;
  double predicted_us;    // 0 where it was ruled out
  std::string ruled_out;  // why, or empty
};

// The choice for the list on the device; the same for the same sizes, strides and alignment in any order. Throws
// UnsupportedError when no embedded kernel runs on the device.
Choice select(const Problem& problem, const Device& device);

// All list variants of the device's architecture and the list's dtype, the usable ones first, by predicted time.
std::vector<Considered> considered(const Problem& problem, const Device& device);

// Why the artifact cannot take the list on this device, or empty.
std::string ruled_out(const gg_artifact& artifact, const Problem& problem, const Device& device);

// The kernel `pack` for the device.
const gg_artifact& pack_artifact(const Device& device);

// The embedded architecture whose kernels a device takes: its own, else the nearest that its cubins or PTX can run on.
// Throws UnsupportedError when there is none.
struct Serving {
  int sm;
  bool from_ptx;
};
Serving serving(const Device& device);

// Whether a device can launch the artifact at all: architecture and shared memory.
bool eligible(const gg_artifact& artifact, const Device& device);

const gg_artifact* find_artifact(const std::string& name);

}  // namespace gg
