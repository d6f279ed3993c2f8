// How long the record of a list is: gg_list_pointers or gg_list_descriptors for each group, behind their ends.
#pragma once

#include <cstddef>

#include "abi/artifact.h"

namespace gg {

// Whether the kernel's records hold TMA descriptors; else they hold addresses and strides.
bool takes_descriptors(const gg_artifact& artifact);

size_t record_word_count(const gg_artifact& artifact);
size_t list_word_count(const gg_artifact& artifact, size_t groups);

// Whether a list of so many groups goes into the kernel's own parameters.
bool fits_parameters(const gg_artifact& artifact, size_t groups);

}  // namespace gg
