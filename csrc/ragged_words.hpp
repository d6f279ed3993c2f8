// A ragged product as its kernels read it: 64-bit words in their own parameters.
#pragma once

#include <cstddef>
#include <cstdint>

#include "artifact.h"
#include "grouped_problem.hpp"

namespace gg {

constexpr size_t most_ragged_words = GG_GROUPED_DESCRIPTORS_WORDS;

// Writes up to most_ragged_words words and returns how many: a gg_grouped_pointers or a gg_grouped_descriptors, as the
// artifact's addressing wants it. Throws CudaError if the driver refuses a descriptor.
size_t write_ragged(const GroupedProblem& ragged, const gg_artifact& artifact, uint64_t* words);

}  // namespace gg
