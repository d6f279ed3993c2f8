// The products of a layer of experts with e4m3 weights, and what quantizes their inputs: rows of x by the index ·
// up · activate and quantize · down. The up projection is rounded to x's dtype before the activation.
#pragma once

#include "launch/experts.hpp"

namespace gg {

// Sets all of a chunk but its slots and its sum: of the tokens from `first` on.
void set_quantized_products(ExpertsChunk& chunk, const CheckedExperts& layer, int64_t first, uint64_t workspace);

}  // namespace gg
