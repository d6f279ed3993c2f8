// TMA descriptors that the host encodes: kernels read them in a list, in device memory or in their own parameters.
#pragma once

#include <cstdint>

#include "abi/artifact.h"

namespace gg {

// What a descriptor says of a matrix or a stack of them, the innermost dimension first, which has unit stride.
struct TensorMap {
  gg_dtype dtype;
  int rank;
  uint64_t address;
  uint64_t sizes[5];
  uint64_t byte_strides[4];  // of the dimensions past the innermost
  uint32_t box[5];           // the innermost is 128 bytes: see box_width
};

// Elements in the 128 bytes that swizzling works on: the inner extent of every box.
uint32_t box_width(gg_dtype dtype);

// A matrix of `leading` rows (or columns) of `contiguous` elements, moved in boxes of `box_leading` of them. A single
// row has no stride: what its array says of one need not be what a descriptor takes, and is not used.
TensorMap make_tensor_map(gg_dtype dtype, uint64_t address, int64_t contiguous, int64_t leading, int64_t leading_stride,
                          int box_leading);

// Throws CudaError naming the artifact if the driver refuses the matrix.
void write_descriptor(const gg_artifact& artifact, const TensorMap& map, gg_descriptor& descriptor);

// The descriptor `like` with another address, for a matrix of the same sizes and strides: less work than to encode one.
// Throws as write_descriptor does.
void write_descriptor_at(const gg_artifact& artifact, const gg_descriptor& like, uint64_t address,
                         gg_descriptor& descriptor);

// Rows of the output that a consumer group writes at once.
int output_box_rows(const gg_artifact& artifact);

inline bool a_by_columns(const gg_artifact& artifact) { return artifact.layout == GG_TN || artifact.layout == GG_TT; }
inline bool b_by_columns(const gg_artifact& artifact) { return artifact.layout == GG_NT || artifact.layout == GG_TT; }

}  // namespace gg
