// Which variant a product takes: a row measured on this very GPU if there is one, else the cheapest by the cost model.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "driver/driver.hpp"
#include "driver/module.hpp"
#include "forms/problem.hpp"

namespace gg {

struct Choice {
  const gg_artifact* artifact;
  ImageKind image;
  double predicted_us;
  bool tuned;         // from a measured row
  double upload_us;   // charged for launches that bring a long list to the device
  bool lent = false;  // the row is that of a plain product, on a kernel with this one's tile
};

// A call that writes its list each time, or a Plan, which did so once: only the first is charged for it. Grouped
// products have no list.
enum class Use { once, repeated };

// A variant that was looked at, for explain().
struct Considered {
  const gg_artifact* artifact;
  double predicted_us;    // 0 where it was ruled out
  double upload_us;       // as in Choice
  std::string ruled_out;  // why, or empty
};

// The choice for the device: for a list the same for the same sizes, strides and alignment in any order, for a grouped
// product whatever the split. Throws UnsupportedError when no embedded kernel takes it on the device.
//
// A measured row says that no variant's kernel is faster than its own. A one-shot call of a list that has to be
// uploaded leaves it only to save uploads: no other variant counts as faster than the row's is predicted to be.
Choice select(const Problem& problem, const Device& device, Use use = Use::once);

// The same, or nothing where no embedded kernel takes it on the device.
std::optional<Choice> select_if_taken(const Problem& problem, const Device& device);

// The same, kept by each thread for the next call with the same choice_key.
Choice cached_choice(const Problem& problem, const Device& device);
std::optional<Choice> cached_choice_if_taken(const Problem& problem, const Device& device);

// All variants of the device's architecture for such a product, the usable ones first, by predicted time and uploads.
std::vector<Considered> considered(const Problem& problem, const Device& device);

// The artifact of that name, whatever it costs. Throws ValueError of `function` where there is none, or it cannot take
// the product.
Choice forced(const std::string& variant, const Problem& problem, const Device& device, const char* function);

}  // namespace gg
