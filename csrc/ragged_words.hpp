// A ragged product as its kernels read it: 64-bit words in their own parameters.
#pragma once

#include <cstddef>
#include <cstdint>

#include "artifact.h"
#include "ragged.hpp"

namespace gg {

constexpr size_t most_ragged_words = 56;

// Writes up to most_ragged_words words and returns how many: addresses and strides for `basic_ragged`
// (aot/kernels/basic_ragged.py), TMA descriptors and what is left of those for `hopper_ragged`
// (aot/kernels/hopper_ragged.py). Throws CudaError if the driver refuses a descriptor.
size_t write_ragged(const Ragged& ragged, const gg_artifact& artifact, uint64_t* words);

}  // namespace gg
