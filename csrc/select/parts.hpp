// A call as launches: a list and its variant, or the groups that TMA takes and the others, each with their own.
#pragma once

#include <vector>

#include "forms/list_problem.hpp"
#include "select/select.hpp"

namespace gg {

// One launch besides uploads.
struct Part {
  ListProblem problem;
  Choice choice;
};

// Usually one part. Two where some groups cannot be described to TMA and others can, if both launches are predicted to
// take less together, with one more launch charged, than the best one for all. The part with the most products comes
// first.
std::vector<Part> divide(ListProblem all, const Device& device, Use use);

}  // namespace gg
