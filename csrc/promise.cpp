#include "promise.hpp"

#include <algorithm>

#include "artifact.h"

namespace gg {
namespace {

constexpr int64_t tma_stride_limit = int64_t{1} << 40;  // bytes
constexpr int64_t most_elements_in_16_bytes = 16;
// Of a dimension that TMA kernels take: they round it up to whole tiles, of 256 at most, in 32 bits.
constexpr int64_t tma_extent_limit = (int64_t{1} << 31) - 256;

}  // namespace

bool is_describable(int64_t stride, int bytes) {
  return stride > 0 && stride < tma_stride_limit && stride * bytes < tma_stride_limit && fills_16_bytes(stride, bytes);
}

Promise promise(uint64_t address, int64_t contiguous, int64_t stride, int64_t leading, int64_t leading_stride,
                int bytes) {
  const bool aligned = address % 16 == 0, counted = std::max(contiguous, leading) <= tma_extent_limit;
  return {contiguous <= 1 || stride == 1,
          aligned && (leading <= 1 || fills_16_bytes(leading_stride, bytes)) && fills_16_bytes(contiguous, bytes),
          aligned && counted && (leading <= 1 || is_describable(leading_stride, bytes))};
}

void Masks::restrict(const Promise (&a)[2], const Promise (&b)[2], const Promise& c, bool has_depth) {
  for (int layout = GG_NN; layout <= GG_TT; layout++) {
    const Promise &pa = a[layout >> 1], &pb = b[layout & 1];
    const auto others = static_cast<LayoutMask>(~(1u << layout));
    if (!(pa.unit && pb.unit && c.unit)) unit_stride &= others;
    if (!(pa.vectorized && pb.vectorized && c.vectorized)) vectorized &= others;
    // TMA writes rows of C by whole 16 bytes, so that an odd N would reach into what lies behind it.
    const bool writes_whole = c.described && c.vectorized;
    if (!(pa.described && pb.described && writes_whole && has_depth)) described &= others;
  }
}

void free_strides(int64_t rows, int64_t columns, int64_t& row_stride, int64_t& column_stride) {
  const auto round_up = [](int64_t x) {
    return std::max<int64_t>(1, ceil_div(x, most_elements_in_16_bytes)) * most_elements_in_16_bytes;
  };
  if (rows <= 1) row_stride = round_up(columns);
  if (columns <= 1) column_stride = round_up(rows);
}

}  // namespace gg
