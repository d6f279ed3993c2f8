// The scales of a grouped product: which ranks and shapes go together, and what they are for.
#pragma once

#include "forms/check_grouped.hpp"

namespace gg {

// By the rank of `scale_b`: GG_SCALING_TENSOR where there are no scales, or one for A and one for each group's B.
// Throws ValueError that lists what goes together, or TypeError for another dtype than float32.
gg_scaling check_scales(const GroupedViews& views);

// Of a ragged K: GG_SCALING_BLOCK for e4m3, of which one scale is that of all blocks.
gg_scaling check_scales_along_k(const GroupedViews& views);

}  // namespace gg
