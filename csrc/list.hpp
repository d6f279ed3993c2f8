// The problem list as kernels read it: 64-bit words, the same in device memory and in a kernel's parameters.
#pragma once

#include <cstddef>
#include <cstdint>

#include "artifact.h"
#include "problem.hpp"

namespace gg {

size_t list_word_count(const gg_artifact& artifact, size_t groups);

// Cumulative tile counts, then a record for each group: addresses and strides (aot/kernels/schedule.py) or, for
// `hopper`, TMA descriptors (aot/kernels/hopper.py). Throws CudaError if the driver refuses a descriptor.
void write_list(const Problem& problem, const gg_artifact& artifact, uint64_t* words);

}  // namespace gg
