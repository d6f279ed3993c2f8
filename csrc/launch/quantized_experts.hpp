// The products of a layer of experts with e4m3 weights, and what quantizes their inputs. There are three ways to what
// the down projection reads, of which the one that is predicted to take the least time is taken:
//
//   way       quantized before the up projection     its rows            the activation
//   in order  rows of x by the index, a token once   as they lie         a launch of its own, which quantizes, of sums
//             for each of its experts                                    that were rounded to x's dtype
//   picked    each token once, as it lies            picked by an index  the same
//   fused     each token once, as it lies            picked by an index  the up projection's kernel activates its sums,
//                                                                        unrounded, and quantizes
//
// The first two give the same bits.
#pragma once

#include "launch/experts.hpp"

namespace gg {

// Sets all of a chunk but its slots and its sum: of the tokens from `first` on.
void set_quantized_products(ExpertsChunk& chunk, const CheckedExperts& layer, int64_t first, uint64_t workspace,
                            const Device& device);

}  // namespace gg
