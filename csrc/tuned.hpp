// The measured rows of the tables, and the keys that they are found by.
#pragma once

#include <cstdint>

#include "artifact.h"
#include "grouped_problem.hpp"
#include "list_problem.hpp"

namespace gg {

// Three sizes as one number, any bit of which depends on all of theirs.
uint64_t size_key(int64_t m, int64_t n, int64_t k);

// The sizes of a list, whatever the order of its groups. aot/tables.py computes the same.
uint64_t shape_key(const ListProblem& problem);

// The sizes of a ragged product, its rows to about a fifth: a row was measured for a layer and a load, not for each
// batch. aot/tables.py and aot/layers.py compute the same.
uint64_t layer_key(const GroupedProblem& ragged);

// What won when it was measured on that one of gg_gpus, or null.
const gg_artifact* tuned_for(int gpu, gg_dtype dtype, gg_layout layout, uint64_t key);

}  // namespace gg
