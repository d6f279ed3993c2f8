// The launches that go back through an activation, row by row.
#pragma once

#include <cstdint>

#include "arrays/tensor.hpp"
#include "driver/driver.hpp"
#include "forms/gradient_rows.hpp"
#include "launch/repeated_launch.hpp"

namespace gg {

// The kernel that is taken.
const gg_artifact& kernel_of(const GradientRows& gradient, const Device& device);

// Ready to be run, again and again. There have to be rows; of columns there may be none, and gradients of weights are
// then zeros.
RepeatedLaunch prepared(const GradientRows& gradient, const Device& device);

// Adds up `row_sums` of so many tiles of columns, in their order, into the gradients of weights.
RepeatedLaunch prepared_row_sums(const GradientRows& gradient, int64_t tiles, const Device& device);

}  // namespace gg
