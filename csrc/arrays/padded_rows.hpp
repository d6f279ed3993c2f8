// Rows of memory between the parts of a product: each starts on 16 bytes, which TMA needs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "arrays/dtype.hpp"

namespace gg {

// In elements.
inline int64_t padded_row(int64_t columns, gg_dtype dtype) {
  const int64_t step = 16 / element_bytes(dtype);
  return (columns + step - 1) / step * step;
}

inline size_t bytes_of_rows(int64_t rows, int64_t columns, gg_dtype dtype) {
  return static_cast<size_t>(rows) * static_cast<size_t>(padded_row(columns, dtype)) *
         static_cast<size_t>(element_bytes(dtype));
}

}  // namespace gg
