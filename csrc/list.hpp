// The problem list as kernels read it: 64-bit words, the same in device memory and in a kernel's parameters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "artifact.h"
#include "list_problem.hpp"

namespace gg {

// Cumulative tile counts, which take `end_words`, then a record for each group: a gg_list_pointers or, where
// takes_descriptors, a gg_list_descriptors.
struct ListWords {
  size_t groups = 0, end_words = 0, record_words = 0;
  std::unique_ptr<uint64_t[]> words;

  size_t size() const { return end_words + groups * record_words; }
  const uint64_t* ends() const { return words.get(); }
  const uint64_t* record(size_t group) const { return words.get() + end_words + group * record_words; }
};

// Whether the kernel's records hold TMA descriptors; else they hold addresses and strides.
bool takes_descriptors(const gg_artifact& artifact);

size_t record_word_count(const gg_artifact& artifact);
size_t list_word_count(const gg_artifact& artifact, size_t groups);

// Throws CudaError if the driver refuses a descriptor.
ListWords write_list(const ListProblem& problem, const gg_artifact& artifact);

}  // namespace gg
