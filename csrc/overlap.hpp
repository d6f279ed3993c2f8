// Which elements of memory arrays share.
#pragma once

#include <cstdint>

#include "dtype.hpp"
#include "tensor.hpp"

namespace gg {

// Memory that an array touches: [low, high) in bytes.
struct Extent {
  uint64_t low, high;
};

// Bytes of an element; for an array of a dtype that is taken: of gg_dtype, or int32.
inline int64_t bytes_of(const Tensor& t) { return t.dtype == GG_ANY_DTYPE ? 4 : element_bytes(t.dtype); }

inline bool is_empty(const Tensor& t) { return t.shape[0] == 0 || t.shape[1] == 0 || t.shape[2] == 0; }

// Of an array that is not empty, of up to three dimensions.
inline Extent extent(const Tensor& t) {
  const auto element = static_cast<uint64_t>(bytes_of(t));
  uint64_t low = t.data, high = t.data + element;
  for (int d = 0; d < 3; d++) {
    const uint64_t reach = static_cast<uint64_t>((t.shape[d] - 1) * t.stride[d]) * element;
    (t.stride[d] < 0 ? low : high) += reach;
  }
  return {low, high};
}

// Whether two elements of a matrix lie in one place, or may.
bool shares_with_itself(const Tensor& matrix);

// Column blocks of one row-major buffer, which interleave without sharing an element.
bool side_by_side(const Tensor& x, const Tensor& y);

}  // namespace gg
