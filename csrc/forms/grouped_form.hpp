// The forms of grouped_mm, which the ranks of mat_a and mat_b tell, as they tell torch.
//
//   form      mat_a        mat_b        output       the product of group g
//   ragged_m  [rows, K]    [E, K, N]    [rows, N]    rows of mat_a up to its end @ mat_b[g]
//   ragged_n  [E, M, K]    [K, columns] [M, columns] mat_a[g] @ columns of mat_b up to its end
//   ragged_k  [M, K]       [K, N]       [E, M, N]    columns of mat_a up to its end @ the same rows of mat_b
//   stack     [E, M, K]    [E, K, N]    [E, M, N]    mat_a[g] @ mat_b[g], or its first counts[g] rows
#pragma once

#include <cstdint>

#include "arrays/tensor.hpp"

namespace gg {

enum class GroupedForm { ragged_m, ragged_n, ragged_k, stack };

// "ragged rows (a 2-D mat_a and a 3-D mat_b)"
const char* words_of(GroupedForm form);

// Whether an argument goes with the form; `forms` has the bit of each form that it goes with.
using GroupedForms = unsigned;
constexpr GroupedForms bit_of(GroupedForm form) { return 1u << static_cast<unsigned>(form); }

// "ragged rows (...) and stacks of matrices (...)"
std::string words_of(GroupedForms forms);

// M, N and K of a product: of a ragged extent that of all groups together.
struct GroupedSizes {
  int64_t groups, m, n, k;
};

}  // namespace gg
