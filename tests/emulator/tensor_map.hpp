// Tensor maps as faults/fake_cuda.c writes them, and the copies of tiles that they describe.
#pragma once

#include <array>

#include "cta.hpp"

namespace emulator {

constexpr int most_dimensions = 5;
using Coordinates = std::array<int32_t, most_dimensions>;

struct TensorMap {
  uint64_t address;
  int rank;
  uint32_t element_bytes;
  std::array<uint64_t, most_dimensions> sizes, strides;
  std::array<uint32_t, most_dimensions> box;

  uint64_t box_bytes() const;
};

TensorMap read_tensor_map(Cta& cta, uint64_t address);

// As Cta::need_fence, for the copy of a tile.
void need_fence(Cta& cta, const Warp& warp, const TensorMap& map, const Coordinates& start, uint64_t shared,
                bool loads);
// Elements outside of the tensor are loaded as zeros and stored nowhere.
void load_tile(Cta& cta, const TensorMap& map, const Coordinates& start, uint64_t shared);
void store_tile(Cta& cta, const TensorMap& map, const Coordinates& start, uint64_t shared);
// Adds float32 elements to what is there.
void add_tile(Cta& cta, const TensorMap& map, const Coordinates& start, uint64_t shared);

// Where 16 bytes lie in shared memory whose rows are `row` bytes: 128, 64, 32, or 16 which are not moved.
inline uint32_t swizzled(uint32_t address, uint32_t row = 128) {
  return address ^ ((address >> 7 & (row / 16 - 1)) << 4);
}

}  // namespace emulator
