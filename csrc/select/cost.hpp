// What a launch of a variant would take, by the cost model: launch, then waves of tiles on all CTAs, or the way of the
// weights through memory where that is longer.
#pragma once

#include "abi/artifact.h"
#include "driver/driver.hpp"
#include "forms/problem.hpp"

namespace gg {

// Charged for each launch of `pack` that a call makes, and for a second launch of products: the host's time for one,
// which is more than the 2 us that the GPU takes for a small one (benchmarks/notes/lists.md).
constexpr double extra_launch_us = 3.5;

double predict_us(const gg_artifact& artifact, const Problem& problem, const Device& device);

}  // namespace gg
