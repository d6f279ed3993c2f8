#include "api/route.hpp"

#include <algorithm>

#include "api/on_cpu.hpp"
#include "forms/guarantees.hpp"
#include "forms/overlap.hpp"
#include "launch/launch_once.hpp"
#include "launch/plan_memory.hpp"
#include "select/catalog.hpp"

namespace py = pybind11;

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

struct Routing {
  py::object ends, token, slot, inverse;
};

Routing make_outputs(const CheckedRoute& route) {
  const auto made = [&](const std::vector<int64_t>& shape) { return route.framework->empty_int32(route.like, shape); };
  const int64_t entries = route.tokens * route.top_k;
  return {made({route.groups}), made({entries}), made({entries}), made({route.tokens, route.top_k})};
}

gg_arguments arguments_of(const CheckedRoute& route, const Routing& to) {
  const auto address = [&](const py::object& array) { return route.framework->view(array, "an output", -1).data; };
  gg_arguments arguments{};
  arguments.ids = route.ids.data;
  arguments.id_bytes = static_cast<int32_t>(bytes_of(route.ids));
  if (route.expert_map.rank > 0) {
    // An empty map may have no address, and 0 would mean that there is no map. The kernel reads nothing of it.
    arguments.expert_map = route.expert_map.shape[0] > 0 ? route.expert_map.data : route.ids.data;
    arguments.map_bytes = static_cast<int32_t>(bytes_of(route.expert_map));
    arguments.map_size = static_cast<int32_t>(route.expert_map.shape[0]);
  }
  arguments.entries = static_cast<int32_t>(route.tokens * route.top_k);
  arguments.top_k = static_cast<int32_t>(std::max<int64_t>(route.top_k, 1));
  arguments.groups = static_cast<int32_t>(route.groups);
  arguments.ends = address(to.ends);
  arguments.token = address(to.token), arguments.slot = address(to.slot), arguments.inverse = address(to.inverse);
  return arguments;
}

}  // namespace

py::object route(const RouteArguments& arguments) {
  const CheckedRoute route = check_route(arguments);
  if (route.device_type == DeviceType::cpu) return on_cpu(GG_ANY_DTYPE);
  const Device& on = device(route.device);
  const Routing to = make_outputs(route);
  const CUstream stream = route.framework->current_stream(route.like, route.device);
  const gg_artifact& place = routing_kernel(on, GG_ROUTE_PLACE, route.groups);
  gg_arguments launched = arguments_of(route, to);
  // A part a multiprocessor: each reads the counts of all parts.
  const int64_t chunks = std::max<int64_t>(1, ceil_div(launched.entries, place.block_m));
  const int64_t chunks_of_part = ceil_div(chunks, on.multiprocessors);
  const int64_t parts = ceil_div(chunks, chunks_of_part);
  launched.chunks = static_cast<int32_t>(chunks_of_part), launched.parts = static_cast<int32_t>(parts);
  std::vector<py::object> scratch;
  if (chunks > 1) {
    const gg_artifact& count = routing_kernel(on, GG_ROUTE_COUNT, route.groups);
    const size_t bytes = static_cast<size_t>(parts) * static_cast<size_t>(count.block_n) * sizeof(int32_t);
    scratch.push_back(route.framework->scratch(route.like, bytes, &launched.counts));
    launch_once(count, on, static_cast<unsigned>(parts), launched, *route.framework, stream);
  }
  launch_once(place, on, static_cast<unsigned>(parts), launched, *route.framework, stream);
  keep_call_memory(std::move(scratch), route.framework->pools_captures(), on, stream);
  return py::make_tuple(to.ends, to.token, to.slot, to.inverse);
}

}  // namespace gg
