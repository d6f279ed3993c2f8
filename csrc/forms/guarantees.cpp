#include "forms/guarantees.hpp"

#include <algorithm>

#include "abi/artifact.h"

namespace gg {
namespace {

constexpr int64_t most_elements_in_16_bytes = 16;

}  // namespace

void Guarantees::restrict(const Guarantee (&a)[2], const Guarantee (&b)[2], const Guarantee& c, bool has_depth) {
  const auto kept = [&](bool Guarantee::* what, bool by_c) {
    // Layouts with A by rows (nn, nt) and by columns (tn, tt), with B by rows (nn, tn) and by columns (nt, tt).
    const unsigned of_a = (a[0].*what ? 1u << GG_NN | 1u << GG_NT : 0) | (a[1].*what ? 1u << GG_TN | 1u << GG_TT : 0);
    const unsigned of_b = (b[0].*what ? 1u << GG_NN | 1u << GG_TN : 0) | (b[1].*what ? 1u << GG_NT | 1u << GG_TT : 0);
    return static_cast<LayoutMask>(by_c ? of_a & of_b : 0);
  };
  unit_stride &= kept(&Guarantee::unit, c.unit);
  vectorized &= kept(&Guarantee::vectorized, c.vectorized);
  // TMA writes rows of C by whole 16 bytes, so that an odd N would reach into what lies behind it.
  described &= kept(&Guarantee::described, c.described && c.vectorized && has_depth);
}

void free_strides(int64_t rows, int64_t columns, int64_t& row_stride, int64_t& column_stride) {
  const auto round_up = [](int64_t x) {
    return std::max<int64_t>(1, ceil_div(x, most_elements_in_16_bytes)) * most_elements_in_16_bytes;
  };
  if (rows <= 1) row_stride = round_up(columns);
  if (columns <= 1) column_stride = round_up(rows);
}

}  // namespace gg
