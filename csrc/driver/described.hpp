// A GPU as the caller of `explain`, or of another function that explains, describes it.
#pragma once

#include <pybind11/pybind11.h>

#include "driver/driver.hpp"

namespace gg {

// Throws TypeError for what is no dict; ValueError for facts that are unknown, missing or out of range.
Device described_device(pybind11::handle described, const char* function);

}  // namespace gg
