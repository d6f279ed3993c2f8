// New outputs and workspaces, where the caller passed none.
#pragma once

#include <vector>

#include "driver/driver.hpp"
#include "forms/check_experts.hpp"
#include "forms/check_grouped.hpp"
#include "forms/check_list.hpp"

namespace gg {

// On the inputs' CUDA device, by their framework.
void make_missing_outputs(CheckedList& list);
void make_missing_output(CheckedGrouped& product);
void make_missing_output(CheckedExperts& layer);

// The address of the caller's workspace; or of new memory, as much as the launches on the device need, which is then
// one of `owners`.
uint64_t workspace_of(const CheckedExperts& layer, const Device& device, std::vector<pybind11::object>& owners);

}  // namespace gg
