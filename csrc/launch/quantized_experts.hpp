// The products of a layer of experts with e4m3 weights, and what quantizes their inputs.
//
//   way       launches
//   by parts  quantize rows of x by the index · up · activate and quantize · down
//   fused     quantize rows of x by the index · up, which activates and quantizes · down
//   gathered  quantize x · up, which picks rows by the index, activates and quantizes · down
//
// What is predicted to take the least time, among those that kernels can do. By parts the up projection is rounded to
// x's dtype before the activation; a kernel that does both does not round it.
#pragma once

#include "launch/experts.hpp"

namespace gg {

// Sets all of a chunk but its slots and its sum: of the tokens from `first` on.
void set_quantized_products(ExpertsChunk& chunk, const CheckedExperts& layer, int64_t first, uint64_t workspace,
                            const Device& device);

}  // namespace gg
