// Which elements of memory arrays share.
#pragma once

#include <cstdint>

#include "tensor.hpp"

namespace gg {

// Memory that an array touches: [low, high) in bytes.
struct Extent {
  uint64_t low, high;
};

// Bytes of an element; for an array of a dtype that is taken: of gg_dtype, or int32.
int64_t bytes_of(const Tensor& tensor);

bool is_empty(const Tensor& tensor);

// Whether every element has an address from 0 to 2^63, with strides that int64 arithmetic in bytes can follow.
bool is_addressable(const Tensor& tensor);

// Of an array that is addressable and not empty, of up to three dimensions.
Extent extent(const Tensor& tensor);

// Whether two elements of an addressable matrix lie in one place, or may.
bool shares_with_itself(const Tensor& matrix);

// Whether two addressable arrays are column blocks of one row-major buffer, which share no element though their extents
// interleave.
bool side_by_side(const Tensor& x, const Tensor& y);

}  // namespace gg
