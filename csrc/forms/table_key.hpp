// The keys by which a problem finds its measured rows; aot/spec/tables.py computes the same.
#pragma once

#include <cstdint>

#include "forms/grouped_problem.hpp"
#include "forms/list_problem.hpp"

namespace gg {

// Three sizes as one number, any bit of which depends on all of theirs.
uint64_t size_key(int64_t m, int64_t n, int64_t k);

// The sizes of a list, whatever the order of its groups. aot/spec/tables.py computes the same.
uint64_t shape_key(const ListProblem& problem);

// The sizes of a ragged product, its rows to about a fifth: a row was measured for a layer and a load, not for each
// batch. aot/spec/tables.py and aot/tuning/layers.py compute the same.
uint64_t layer_key(const GroupedProblem& product);

}  // namespace gg
