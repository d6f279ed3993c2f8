#include "list.hpp"

#include <cstring>

#include "driver.hpp"

namespace gg {
namespace {

constexpr size_t strides_record_words = 12;
constexpr size_t descriptor_words = 16;
constexpr size_t descriptors_record_words = 56;
constexpr size_t words_in_64_bytes = 8;
constexpr unsigned element_bytes = 2;
constexpr unsigned swizzle_elements = 64;  // 128 bytes: the inner extent of every box

bool takes_descriptors(const gg_artifact& artifact) { return artifact.kernel == GG_HOPPER; }

size_t end_words(const gg_artifact& artifact, size_t groups) {
  if (!takes_descriptors(artifact)) return groups;
  return (groups + words_in_64_bytes - 1) / words_in_64_bytes * words_in_64_bytes;
}

// A matrix [rows, columns] with unit column stride, to be moved in boxes of box_rows x 64.
void write_descriptor(const gg_artifact& artifact, uint64_t address, int64_t rows, int64_t columns, int64_t row_stride,
                      int box_rows, uint64_t* words) {
  const uint64_t sizes[2] = {static_cast<uint64_t>(columns), static_cast<uint64_t>(rows)};
  const uint64_t strides[1] = {static_cast<uint64_t>(row_stride) * element_bytes};
  const uint32_t box[2] = {swizzle_elements, static_cast<uint32_t>(box_rows)}, element_strides[2] = {1, 1};
  const int type = artifact.dtype == GG_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  alignas(64) uint64_t encoded[descriptor_words];
  const CUresult result = driver().cuTensorMapEncodeTiled(
      encoded, type, 2, reinterpret_cast<void*>(address), sizes, strides, box, element_strides,
      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) driver().check(result, "cuTensorMapEncodeTiled", artifact.name);
  std::memcpy(words, encoded, sizeof encoded);
}

void write_descriptors(const gg_artifact& artifact, const Group& g, uint64_t* record) {
  const bool a_by_columns = artifact.layout == GG_TN || artifact.layout == GG_TT;
  const bool b_by_columns = artifact.layout == GG_NT || artifact.layout == GG_TT;
  if (a_by_columns) write_descriptor(artifact, g.a, g.k, g.m, g.a_col, artifact.block_k, record);
  else write_descriptor(artifact, g.a, g.m, g.k, g.a_row, artifact.block_m, record);
  record += descriptor_words;
  if (b_by_columns) write_descriptor(artifact, g.b, g.n, g.k, g.b_col, artifact.block_n, record);
  else write_descriptor(artifact, g.b, g.k, g.n, g.b_row, artifact.block_k, record);
  record += descriptor_words;
  write_descriptor(artifact, g.c, g.m, g.n, g.c_row, artifact.block_m, record);
  record += descriptor_words;
  const uint64_t sizes[] = {static_cast<uint64_t>(g.m), static_cast<uint64_t>(g.n), static_cast<uint64_t>(g.k), 0, 0, 0, 0, 0};
  std::memcpy(record, sizes, sizeof sizes);
}

void write_strides(const Group& g, uint64_t* record) {
  const int64_t fields[strides_record_words] = {
      static_cast<int64_t>(g.a), static_cast<int64_t>(g.b), static_cast<int64_t>(g.c), g.a_row, g.a_col, g.b_row, g.b_col,
      g.c_row, g.c_col, g.m, g.n, g.k};
  std::memcpy(record, fields, sizeof fields);
}

}  // namespace

size_t list_word_count(const gg_artifact& artifact, size_t groups) {
  return end_words(artifact, groups) + groups * (takes_descriptors(artifact) ? descriptors_record_words : strides_record_words);
}

void write_list(const Problem& problem, const gg_artifact& artifact, uint64_t* words) {
  uint64_t end = 0, *ends = words;
  uint64_t* record = words + end_words(artifact, problem.groups.size());
  for (const Group& group : problem.groups) {
    *ends++ = end += static_cast<uint64_t>(tile_count(group, artifact.block_m, artifact.block_n));
    if (takes_descriptors(artifact)) {
      write_descriptors(artifact, group, record);
      record += descriptors_record_words;
    } else {
      write_strides(group, record);
      record += strides_record_words;
    }
  }
  while (ends < words + end_words(artifact, problem.groups.size())) *ends++ = end;
}

}  // namespace gg
