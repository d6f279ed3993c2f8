// What a launch of a variant would take, by the cost model: launch, then turns of tiles on all CTAs, or the way of the
// weights through memory where that is longer.
#pragma once

#include "artifact.h"
#include "driver.hpp"
#include "problem.hpp"
#include "ragged.hpp"

namespace gg {

double predict_us(const gg_artifact& artifact, const Problem& problem, const Device& device);

// By expectation: the device knows the split, the host does not.
double predict_us(const gg_artifact& artifact, const Ragged& ragged, const Device& device);

}  // namespace gg
