#include "launch/route.hpp"

#include <algorithm>

#include "forms/guarantees.hpp"
#include "forms/overlap.hpp"
#include "select/catalog.hpp"

namespace gg {
namespace {

// The kernel with the fewest bins that the groups and what is dropped fit into.
const gg_artifact& routing_kernel(const Device& device, gg_form form, int64_t groups) {
  const gg_artifact* best = nullptr;
  for (const gg_artifact* one : catalog(device).others[form]) {
    if (one->block_n > groups && (!best || one->block_n < best->block_n)) best = one;
  }
  if (!best) missing_artifact(form);
  return *best;
}

// A part for each CTA, and no more of them than multiprocessors: each reads the counts of all parts.
struct Shares {
  int64_t chunks, chunks_of_part, parts;
};

Shares shares_of(const RouteSlots& slots, const gg_artifact& place, const Device& device) {
  const int64_t chunks = std::max<int64_t>(1, ceil_div(slots.entries(), place.block_m));
  const int64_t chunks_of_part = ceil_div(chunks, device.multiprocessors);
  return {chunks, chunks_of_part, ceil_div(chunks, chunks_of_part)};
}

gg_arguments arguments_of(const RouteSlots& slots, const Shares& shares) {
  gg_arguments arguments{};
  arguments.ids = slots.ids;
  arguments.id_bytes = static_cast<int32_t>(slots.id_bytes);
  if (slots.has_map) {
    // 0 would mean that there is no map. The kernel reads nothing of an empty one.
    arguments.expert_map = slots.map_size > 0 ? slots.expert_map : slots.ids;
    arguments.map_bytes = static_cast<int32_t>(slots.map_bytes);
    arguments.map_size = static_cast<int32_t>(slots.map_size);
  }
  arguments.entries = static_cast<int32_t>(slots.entries());
  arguments.top_k = static_cast<int32_t>(std::max<int64_t>(slots.top_k, 1));
  arguments.groups = static_cast<int32_t>(slots.groups);
  arguments.ends = slots.ends;
  arguments.token = slots.token, arguments.slot = slots.slot, arguments.inverse = slots.inverse;
  arguments.chunks = static_cast<int32_t>(shares.chunks_of_part);
  arguments.parts = static_cast<int32_t>(shares.parts);
  if (shares.chunks > 1) arguments.counts = slots.counts;
  return arguments;
}

}  // namespace

RouteSlots slots_of(const Tensor& ids, const Tensor& expert_map, int64_t groups) {
  RouteSlots slots;
  slots.ids = ids.data, slots.id_bytes = bytes_of(ids);
  slots.tokens = ids.shape[0], slots.top_k = ids.shape[1], slots.groups = groups;
  slots.has_map = expert_map.rank > 0;
  if (!slots.has_map) return slots;
  slots.expert_map = expert_map.data, slots.map_bytes = bytes_of(expert_map), slots.map_size = expert_map.shape[0];
  return slots;
}

std::vector<const gg_artifact*> kernels_of(const RouteSlots& slots, const Device& device) {
  const gg_artifact& place = routing_kernel(device, GG_ROUTE_PLACE, slots.groups);
  if (shares_of(slots, place, device).chunks == 1) return {&place};
  return {&routing_kernel(device, GG_ROUTE_COUNT, slots.groups), &place};
}

size_t route_count_bytes(const RouteSlots& slots, const Device& device) {
  const std::vector<const gg_artifact*> kernels = kernels_of(slots, device);
  if (kernels.size() == 1) return 0;
  const Shares shares = shares_of(slots, *kernels[1], device);
  return static_cast<size_t>(shares.parts) * static_cast<size_t>(kernels[0]->block_n) * sizeof(int32_t);
}

RouteLaunches prepared(const RouteSlots& slots, const Device& device) {
  const gg_artifact& place = routing_kernel(device, GG_ROUTE_PLACE, slots.groups);
  const Shares shares = shares_of(slots, place, device);
  const gg_arguments arguments = arguments_of(slots, shares);
  const auto launch = [&](const gg_artifact& kernel) {
    return RepeatedLaunch(kernel, device, static_cast<unsigned>(shares.parts), arguments);
  };
  if (shares.chunks == 1) return {std::nullopt, launch(place)};
  return {launch(routing_kernel(device, GG_ROUTE_COUNT, slots.groups)), launch(place)};
}

}  // namespace gg
