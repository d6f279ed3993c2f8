#include "forms/check_routing.hpp"

#include <cstring>
#include <string>

#include "driver/error.hpp"
#include "forms/overlap.hpp"

namespace py = pybind11;

namespace gg {
namespace {

void check_added(const CheckedCombine& c) {
  const ArgumentName added{"combine", "add"};
  check_rows(c.added, added);
  if (c.added.dtype != c.y.dtype) {
    reject_type(added, std::string("has dtype ") + c.added.dtype_name + " but y has " + c.y.dtype_name +
                           "; convert one of them");
  }
  if (c.added.shape[0] != c.tokens || c.added.shape[1] != c.columns) {
    reject(added, "has shape " + shape(c.added) + ", the sums have " + shape(c.tokens, c.columns));
  }
  check_device(c.added, added, c.y, "y");
}

// `add` may be the output itself: each element is read before it is written.
void check_out_overlap(const CheckedCombine& c) {
  const ArgumentName out{"combine", "out"};
  check_separate(c.out_view, out, c.y, "y");
  check_separate(c.out_view, out, c.inverse, "inverse");
  check_separate(c.out_view, out, c.weights, "weights");
  if (!same_places(c.added, c.out_view)) check_separate(c.out_view, out, c.added, "add");
}

}  // namespace

CheckedRoute check_route(const RouteArguments& arguments) {
  CheckedRoute route;
  const ArgumentName ids{"route", "topk_ids"}, map{"route", "expert_map"};
  route.ids = view_of(arguments.topk_ids, ids);
  check_integers(route.ids, ids, 2);
  check_slots(route.ids, ids);
  if (arguments.experts < 1 || arguments.experts > most_experts) {
    throw ValueError("route: experts is " + std::to_string(arguments.experts) + ", 1 to " +
                     std::to_string(most_experts) + " are possible");
  }
  route.expert_map = view_if_given(arguments.expert_map, map);
  if (route.expert_map.rank > 0) {
    check_integers(route.expert_map, map, 1);
    check_device(route.expert_map, map, route.ids, "topk_ids");
  }
  route.take(arguments.topk_ids, route.ids, "topk_ids");
  route.tokens = route.ids.shape[0], route.top_k = route.ids.shape[1], route.groups = arguments.experts;
  return route;
}

CheckedCombine check_combine(const CombineArguments& arguments) {
  CheckedCombine c;
  const ArgumentName inverse{"combine", "inverse"}, out{"combine", "out"};
  c.y = view_of(arguments.y, {"combine", "y"});
  check_rows(c.y, {"combine", "y"});
  c.inverse = view_of(arguments.inverse, inverse);
  if (std::strcmp(c.inverse.dtype_name, "int32") != 0) {
    reject_type(inverse, std::string("has dtype ") + c.inverse.dtype_name + "; int32 is needed, as route gives it");
  }
  check_integers(c.inverse, inverse, 2);
  check_slots(c.inverse, inverse);
  check_device(c.inverse, inverse, c.y, "y");
  c.tokens = c.inverse.shape[0], c.top_k = c.inverse.shape[1], c.columns = c.y.shape[1];
  c.weights = view_if_given(arguments.weights, {"combine", "weights"});
  if (c.weights.rank > 0) check_slot_weights(c.weights, {"combine", "weights"}, c.inverse, "inverse");
  c.added = view_if_given(arguments.add, {"combine", "add"});
  if (c.added.rank > 0) check_added(c);
  if (!arguments.out.is_none()) {
    Gradients recorded;
    c.out_view = view_of(arguments.out, out);
    check_output(c.out_view, out, arguments.out, {c.tokens, c.columns, c.y.dtype, "the sum"}, recorded);
    check_rows(c.out_view, out);
    check_device(c.out_view, out, c.y, "y");
    check_out_overlap(c);
    c.out = py::reinterpret_borrow<py::object>(arguments.out);
  }
  c.take(arguments.y, c.y, "y");
  c.dtype = c.out_dtype = c.y.dtype;
  return c;
}

void check_gradients(const CombineArguments& arguments) {
  GradientCheck check("combine");
  check(arguments.y, "y");
  check(arguments.weights, "weights");
  check(arguments.add, "add");
}

}  // namespace gg
