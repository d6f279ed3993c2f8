// The scales of a grouped product: which ranks and shapes go together, and what they are for.
#pragma once

#include "forms/check_grouped.hpp"

namespace gg {

// Of K and of N, that one scale of GG_SCALING_BLOCK is for.
constexpr int64_t scale_block = 128;

// By the rank of `scale_b`: GG_SCALING_TENSOR where there are no scales, or one for A and one for each group's B.
// Throws ValueError that lists what goes together, or TypeError for another dtype than float32.
gg_scaling check_scales(const GroupedViews& views);

}  // namespace gg
