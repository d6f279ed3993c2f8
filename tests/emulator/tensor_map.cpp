#include "tensor_map.hpp"

namespace emulator {
namespace {

// Calls copy(address or 0, place in shared memory) for each element of the box.
template <typename Copy>
void for_box(const TensorMap& map, const Coordinates& start, uint64_t shared, Copy copy) {
  Coordinates in_box = {};
  const uint64_t elements = map.box_bytes() / map.element_bytes;
  for (uint64_t i = 0; i < elements; i++) {
    uint64_t address = map.address;
    bool exists = true;
    for (int d = 0; d < map.rank; d++) {
      const int64_t at = int64_t{start[d]} + in_box[d];
      exists &= at >= 0 && static_cast<uint64_t>(at) < map.sizes[d];
      address += static_cast<uint64_t>(at) * map.strides[d];
    }
    copy(exists ? address : 0, swizzled(static_cast<uint32_t>(shared + i * map.element_bytes)));
    for (int d = 0; d < map.rank && static_cast<uint32_t>(++in_box[d]) == map.box[d]; d++) in_box[d] = 0;
  }
}

}  // namespace

uint64_t TensorMap::box_bytes() const {
  uint64_t bytes = element_bytes;
  for (int d = 0; d < rank; d++) bytes *= box[d];
  return bytes;
}

TensorMap read_tensor_map(Cta& cta, uint64_t address) {
  uint64_t words[16];
  if (address % 64) throw Fault("a tensor map lies on no 64 bytes");
  std::memcpy(words, cta.global(address, sizeof words, false), sizeof words);
  TensorMap map = {};
  map.address = words[0];
  map.rank = static_cast<int>(words[7]);
  map.element_bytes = words[6] == 0 ? 1 : words[6] == 7 ? 4 : 2;
  if (map.rank < 2 || map.rank > most_dimensions) throw Fault("what lies there is no tensor map");
  map.sizes = {words[1], words[2]};
  map.strides = {map.element_bytes, words[3]};
  map.box = {static_cast<uint32_t>(words[4]), static_cast<uint32_t>(words[5])};
  for (int d = 2; d < map.rank; d++) {
    map.sizes[d] = words[6 + d];
    map.strides[d] = words[9 + d];
    map.box[d] = words[14] >> 16 * (d - 2) & 0xffff;
  }
  return map;
}

void need_fence(Cta& cta, const Warp& warp, const TensorMap& map, const Coordinates& start, uint64_t shared,
                bool loads) {
  for_box(map, start, shared, [&](uint64_t address, uint32_t place) {
    if (place % 4 == 0 && (address || loads)) cta.need_fence(warp, place, 4, loads);
  });
}

void load_tile(Cta& cta, const TensorMap& map, const Coordinates& start, uint64_t shared) {
  for_box(map, start, shared, [&](uint64_t address, uint32_t place) {
    uint8_t* to = cta.shared(place, map.element_bytes);
    std::memset(to, 0, map.element_bytes);
    if (address) std::memcpy(to, cta.global(address, map.element_bytes, false), map.element_bytes);
  });
}

void store_tile(Cta& cta, const TensorMap& map, const Coordinates& start, uint64_t shared) {
  for_box(map, start, shared, [&](uint64_t address, uint32_t place) {
    if (!address) return;
    std::memcpy(cta.global(address, map.element_bytes, true), cta.shared(place, map.element_bytes), map.element_bytes);
  });
}

void add_tile(Cta& cta, const TensorMap& map, const Coordinates& start, uint64_t shared) {
  if (map.element_bytes != sizeof(float)) throw Fault("sums of other elements than float32");
  for_box(map, start, shared, [&](uint64_t address, uint32_t place) {
    if (!address) return;
    float values[2];
    uint8_t* to = cta.global(address, sizeof(float), true);
    std::memcpy(&values[0], to, sizeof(float));
    std::memcpy(&values[1], cta.shared(place, sizeof(float)), sizeof(float));
    values[0] += values[1];
    std::memcpy(to, &values[0], sizeof(float));
  });
}

}  // namespace emulator
