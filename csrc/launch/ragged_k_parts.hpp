// The parts of a product of ragged K: what product_parts.hpp has of it.
#pragma once

#include "launch/product_parts.hpp"

namespace gg {

// Whether its kernel may add its sums to the output: the output is float32 and stays as it is, times 1.
bool may_accumulate(const GroupedProblem& problem);

// All that there is to do besides the product, whose K is in one piece.
Division all_parts_of_k(const GroupedProblem& problem);

// What is worth a prediction, the first of them all_parts_of_k: from sizes alone, never from what the device has. A
// kernel gathers one operand at most.
std::vector<Division> divisions_of_k(const GroupedProblem& problem, const Device& device);

PartsBytes parts_bytes_of_k(const GroupedProblem& problem, const Division& division);
Parts parts_of_k(const GroupedProblem& problem, const Division& division, const PartsMemory& memory);

}  // namespace gg
