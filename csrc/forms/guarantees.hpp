// What matrices keep of what kernels were compiled to take for granted: unit strides, aligned pointers, sizes, strides.
#pragma once

#include <algorithm>
#include <cstdint>

namespace gg {

constexpr int64_t tma_stride_limit = int64_t{1} << 40;  // bytes
// Of a dimension that TMA kernels take: they round it up to whole tiles, of 256 at most, in 32 bits.
constexpr int64_t tma_extent_limit = (int64_t{1} << 31) - 256;

// Whether so many elements are a multiple of 16 bytes. Without a division, which would show in the time of a call.
inline bool fills_16_bytes(int64_t elements, int bytes) {
  return static_cast<uint64_t>(elements) * static_cast<uint64_t>(bytes) % 16 == 0;
}

// A stride that a TMA descriptor takes, if it is one of a dimension that is walked along.
inline bool is_describable(int64_t stride, int bytes) {
  return stride > 0 && stride < tma_stride_limit && stride * bytes < tma_stride_limit && fills_16_bytes(stride, bytes);
}

// Of one matrix, if it is read with the first of its dimensions contiguous.
struct Guarantee {
  bool unit;        // that dimension has unit stride
  bool vectorized;  // pointer, leading stride and contiguous extent are multiples of 16 bytes
  bool described;   // a TMA descriptor can be made of it: pointer and leading stride, which is positive
};

// Strides in elements of `bytes`. A dimension of size 1 or 0 has no stride, so nothing about its stride can break a
// guarantee. Inline: a list asks five times for each group.
inline Guarantee guarantee(uint64_t address, int64_t contiguous, int64_t stride, int64_t leading,
                           int64_t leading_stride, int bytes) {
  const bool aligned = address % 16 == 0, counted = std::max(contiguous, leading) <= tma_extent_limit;
  return {contiguous <= 1 || stride == 1,
          aligned && (leading <= 1 || fills_16_bytes(leading_stride, bytes)) && fills_16_bytes(contiguous, bytes),
          aligned && counted && (leading <= 1 || is_describable(leading_stride, bytes))};
}

// Bit L of a mask speaks of layout L (gg_layout: nn, nt, tn, tt) and is set if all matrices keep the guarantee.
using LayoutMask = uint8_t;

struct Guarantees {
  LayoutMask unit_stride = 0xf, vectorized = 0xf, described = 0xf;

  // Takes away what a product does not keep. `a` and `b` by their letter in the layout, n and t; TMA wants depth.
  void restrict(const Guarantee (&a)[2], const Guarantee (&b)[2], const Guarantee& c, bool has_depth);
};

// Replaces strides that are never used, along dimensions of size 1 or 0, by what a TMA descriptor takes.
void free_strides(int64_t rows, int64_t columns, int64_t& row_stride, int64_t& column_stride);

inline int64_t ceil_div(int64_t x, int64_t y) { return (x + y - 1) / y; }

}  // namespace gg
