// New outputs, where the caller passed none.
#pragma once

#include "forms/check_grouped.hpp"
#include "forms/check_list.hpp"

namespace gg {

// On the inputs' CUDA device, by their framework.
void make_missing_outputs(CheckedList& list);
void make_missing_output(CheckedGrouped& product);

}  // namespace gg
