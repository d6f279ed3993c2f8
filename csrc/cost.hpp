// What a launch of a variant would take, by the cost model: launch, then waves of tiles on all CTAs, or the way of the
// weights through memory where that is longer.
#pragma once

#include "artifact.h"
#include "driver.hpp"
#include "problem.hpp"

namespace gg {

double predict_us(const gg_artifact& artifact, const Problem& problem, const Device& device);

}  // namespace gg
