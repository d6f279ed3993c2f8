// Which variant a product takes: a row measured on this very GPU if there is one, else the cheapest by the cost model.
#pragma once

#include <string>
#include <vector>

#include "driver.hpp"
#include "image.hpp"
#include "problem.hpp"
#include "ragged.hpp"

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

// The choice for the device: for a list the same for the same sizes, strides and alignment in any order, for a ragged
// product whatever the split. Throws UnsupportedError when no embedded kernel takes it on the device.
Choice select(const Problem& problem, const Device& device);
Choice select(const Ragged& ragged, const Device& device);

// The choice of `select`, kept by each thread for the next call with the same sizes, dtypes and promises.
Choice remembered(const Ragged& ragged, const Device& device);

// All variants of the device's architecture for such a product, the usable ones first, by predicted time.
std::vector<Considered> considered(const Problem& problem, const Device& device);
std::vector<Considered> considered(const Ragged& ragged, const Device& device);

// The artifact of that name, whatever it costs. Throws ValueError of `function` where there is none, or it cannot take
// the product.
Choice forced(const std::string& variant, const Problem& problem, const Device& device, const char* function);
Choice forced(const std::string& variant, const Ragged& ragged, const Device& device, const char* function);

}  // namespace gg
