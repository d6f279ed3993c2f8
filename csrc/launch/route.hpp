// Launches that sort slots by expert: one, or two where one CTA cannot count all of them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "arrays/tensor.hpp"
#include "driver/driver.hpp"
#include "launch/repeated_launch.hpp"

namespace gg {

// Addresses; integers of 4 or 8 bytes that are read, int32 that are written.
struct RouteSlots {
  uint64_t ids = 0;
  int64_t id_bytes = 4;
  int64_t tokens = 0, top_k = 0, groups = 0;
  bool has_map = false;  // an empty map may have no address
  uint64_t expert_map = 0;
  int64_t map_bytes = 4, map_size = 0;
  uint64_t ends = 0, token = 0, slot = 0, inverse = 0;
  uint64_t counts = 0;  // of route_count_bytes, for the first launch to leave to the second

  int64_t entries() const { return tokens * top_k; }
};

// Of ids [tokens, k] and a map, which has no rank where there is none; what is written is left out.
RouteSlots slots_of(const Tensor& ids, const Tensor& expert_map, int64_t groups);

// The kernels that are taken, in order.
std::vector<const gg_artifact*> kernels_of(const RouteSlots& slots, const Device& device);

size_t route_count_bytes(const RouteSlots& slots, const Device& device);

// Ready to be run, again and again, within launch_in_order.
struct RouteLaunches {
  std::optional<RepeatedLaunch> count;
  RepeatedLaunch place;

  void run(CUstream stream) const {
    if (count) count->run(stream);
    place.run(stream);
  }
  std::vector<const gg_artifact*> artifacts() const {
    if (!count) return {&place.artifact()};
    return {&count->artifact(), &place.artifact()};
  }
};
RouteLaunches prepared(const RouteSlots& slots, const Device& device);

}  // namespace gg
