#include "driver/tensor_map.hpp"

#include <algorithm>

#include "driver/driver.hpp"

namespace gg {
namespace {

constexpr int swizzle_bytes = 128;

}  // namespace

uint32_t box_width(gg_dtype dtype) { return static_cast<uint32_t>(swizzle_bytes / gg_dtypes[dtype].bytes); }

TensorMap make_tensor_map(gg_dtype dtype, uint64_t address, int64_t contiguous, int64_t leading, int64_t leading_stride,
                          int box_leading) {
  TensorMap d{dtype, 2, address, {}, {}, {}};
  d.sizes[0] = static_cast<uint64_t>(contiguous);
  d.sizes[1] = static_cast<uint64_t>(leading);
  const auto bytes = static_cast<uint64_t>(gg_dtypes[dtype].bytes);
  const uint64_t packed = (d.sizes[0] * bytes + 15) / 16 * 16;
  d.byte_strides[0] = leading > 1 ? static_cast<uint64_t>(leading_stride) * bytes : packed;
  d.box[0] = box_width(dtype);
  d.box[1] = static_cast<uint32_t>(box_leading);
  return d;
}

void write_descriptor(const gg_artifact& artifact, const TensorMap& map, gg_descriptor& descriptor) {
  constexpr uint32_t element_strides[5] = {1, 1, 1, 1, 1};
  alignas(64) gg_descriptor encoded;
  const CUresult result = driver().cuTensorMapEncodeTiled(
      encoded.words, gg_dtypes[map.dtype].tensor_map_type, static_cast<uint32_t>(map.rank),
      reinterpret_cast<void*>(map.address), map.sizes, map.byte_strides, map.box, element_strides,
      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) driver().check(result, "cuTensorMapEncodeTiled", artifact.name);
  descriptor = encoded;
}

void write_descriptor_at(const gg_artifact& artifact, const gg_descriptor& like, uint64_t address,
                         gg_descriptor& descriptor) {
  alignas(64) gg_descriptor moved = like;
  const CUresult result = driver().cuTensorMapReplaceAddress(moved.words, reinterpret_cast<void*>(address));
  if (result != CUDA_SUCCESS) driver().check(result, "cuTensorMapReplaceAddress", artifact.name);
  descriptor = moved;
}

int output_box_rows(const gg_artifact& artifact) { return artifact.block_m / std::max(artifact.split, 1); }

}  // namespace gg
