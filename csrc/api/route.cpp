#include "api/route.hpp"

#include "api/on_cpu.hpp"
#include "forms/overlap.hpp"
#include "launch/plan_memory.hpp"
#include "launch/route.hpp"

namespace py = pybind11;

namespace gg {
namespace {

struct Routing {
  py::object ends, token, slot, inverse;
};

Routing make_outputs(const CheckedRoute& route) {
  const auto made = [&](const std::vector<int64_t>& shape) { return route.framework->empty_int32(route.like, shape); };
  const int64_t entries = route.tokens * route.top_k;
  return {made({route.groups}), made({entries}), made({entries}), made({route.tokens, route.top_k})};
}

RouteSlots slots_of(const CheckedRoute& route, const Routing& to) {
  const auto address = [&](const py::object& array) { return route.framework->view(array, "an output", -1).data; };
  RouteSlots slots = slots_of(route.ids, route.expert_map, route.groups);
  slots.ends = address(to.ends), slots.token = address(to.token);
  slots.slot = address(to.slot), slots.inverse = address(to.inverse);
  return slots;
}

}  // namespace

py::object route(const RouteArguments& arguments) {
  if (stands_for_others(arguments.topk_ids, {"route", "topk_ids"})) return stand_in();
  GradientCheck("route")(arguments.topk_ids, "topk_ids");  // ids have none, but may be traced
  const CheckedRoute route = check_route(arguments);
  if (route.device_type == DeviceType::cpu) return on_cpu(GG_ANY_DTYPE);
  const Device& on = device(route.device);
  const Routing to = make_outputs(route);
  const CUstream stream = route.framework->current_stream(route.like, route.device);
  RouteSlots slots = slots_of(route, to);
  std::vector<py::object> scratch;
  if (const size_t bytes = route_count_bytes(slots, on); bytes > 0) {
    scratch.push_back(route.framework->scratch(route.like, bytes, &slots.counts));
  }
  const RouteLaunches launches = prepared(slots, on);
  keep_call_memory(scratch, route.framework->pools_captures(), on, stream);
  launch_in_order(on, *route.framework, stream, [&] { launches.run(stream); });
  return py::make_tuple(to.ends, to.token, to.slot, to.inverse);
}

}  // namespace gg
