// Which elements of memory arrays share.
#pragma once

#include <cstdint>
#include <cstring>

#include "arrays/dtype.hpp"
#include "arrays/tensor.hpp"

namespace gg {

// Memory that an array touches: [low, high) in bytes.
struct Extent {
  uint64_t low, high;
};

// Bytes of an element; for an array of a dtype that is taken: of gg_dtype, int32 or int64.
inline int64_t bytes_of(const Tensor& t) {
  if (t.dtype != GG_ANY_DTYPE) return element_bytes(t.dtype);
  return std::strcmp(t.dtype_name, "int64") == 0 ? 8 : 4;
}

// Whether every element has an address from 0 to 2^63, with strides that int64 arithmetic in bytes can follow.
bool is_addressable(const Tensor& tensor);

// Of an array that is addressable and not empty, of up to three dimensions.
inline Extent extent(const Tensor& t) {
  const auto element = static_cast<uint64_t>(bytes_of(t));
  uint64_t low = t.data, high = t.data + element;
  for (int d = 0; d < 3; d++) {
    const uint64_t reach = static_cast<uint64_t>(t.shape[d] - 1) * static_cast<uint64_t>(t.stride[d]) * element;
    (t.stride[d] < 0 ? low : high) += reach;
  }
  return {low, high};
}

// Whether two elements of an addressable matrix lie in one place, or may.
bool shares_with_itself(const Tensor& t);

// Whether two addressable arrays are column blocks of one row-major buffer, which share no element though their extents
// interleave.
bool side_by_side(const Tensor& x, const Tensor& y);

// Whether two matrices of one shape have each element in the same place: a single row has no stride to a second.
inline bool same_places(const Tensor& x, const Tensor& y) {
  return x.data == y.data && (x.shape[0] <= 1 || x.stride[0] == y.stride[0]);
}

// Whether two arrays may have an element in one place; no array (address 0), and an empty one, shares nothing.
bool may_share(const Tensor& x, const Tensor& y);

}  // namespace gg
