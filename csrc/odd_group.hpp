// Which group keeps a list from a variant, and what of it.
#pragma once

#include <string>

#include "artifact.h"
#include "problem.hpp"

namespace gg {

// The first of the caller's groups that does not keep what the artifact was compiled for, told by the array and the
// fact: "B[17] has rows of 14 bytes". Empty where all keep it.
std::string odd_group(const Problem& problem, const gg_artifact& artifact);

}  // namespace gg
