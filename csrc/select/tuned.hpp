// The measured rows of the tables.
#pragma once

#include <cstdint>

#include "abi/artifact.h"

namespace gg {

// The row of what won when it was measured on that one of gg_gpus, or null.
const gg_tuned_row* tuned_for(int gpu, gg_dtype dtype, gg_layout layout, uint64_t key);

}  // namespace gg
