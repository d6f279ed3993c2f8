// The products of a layer of experts with e4m3 weights, and what quantizes their inputs: x · up · activate and
// quantize · down. The up projection is rounded to x's dtype before the activation.
//
// x is quantized in one of two ways, by which is predicted to take less: rows by the index, in the order of the
// product, a token once for each of its experts; or each token once, as it lies, and the up projection picks rows by
// the index. Both give the same bits.
#pragma once

#include "launch/experts.hpp"

namespace gg {

// Sets all of a chunk but its slots and its sum: of the tokens from `first` on.
void set_quantized_products(ExpertsChunk& chunk, const CheckedExperts& layer, int64_t first, uint64_t workspace,
                            const Device& device);

}  // namespace gg
