#include "forms/check_routing.hpp"

#include <cstring>
#include <string>

#include "arrays/dtype.hpp"
#include "driver/error.hpp"
#include "forms/overlap.hpp"

namespace py = pybind11;

namespace gg {
namespace {

// Of the largest kernel, less a bin for what is dropped.
constexpr int64_t most_experts = 1023, most_entries = (int64_t{1} << 31) - 1;

Tensor view(const ArgumentName& argument, py::handle array) {
  return named_by(argument.function, [&] { return framework_of(array, argument.what, -1).view(array, argument.what, -1); });
}

Tensor view_if_given(const ArgumentName& argument, py::handle array) {
  return array.is_none() ? Tensor{} : view(argument, array);
}

void take(CheckedCall& call, py::handle first, const Tensor& seen, const char* what) {
  call.framework = &framework_of(first, what, -1);
  call.like = py::reinterpret_borrow<py::object>(first);
  call.device_type = seen.device_type, call.device = seen.device;
}

void check_entries(const Tensor& t, const ArgumentName& argument) {
  if (t.shape[0] * t.shape[1] <= most_entries) return;
  reject(argument, "has shape " + shape(t) + ", one call takes up to 2147483647 slots; split the tokens");
}

// A matrix of y's dtype and columns, whose rows lie in one piece each.
void check_rows(const Tensor& t, const ArgumentName& argument) {
  check_matrix(t, argument);
  if (t.dtype != GG_FP16 && t.dtype != GG_BF16) {
    reject_type(argument, std::string("has dtype ") + t.dtype_name + ", float16 or bfloat16 is needed; convert it");
  }
  check_memory(t, argument);
  if (t.shape[1] > 1 && t.stride[1] != 1) {
    reject(argument, "has stride " + std::to_string(t.stride[1]) +
                         " between columns, the elements of a row must lie one behind the other; copy it");
  }
}

void check_weights(const CheckedCombine& c) {
  const ArgumentName weights{"combine", "weights"};
  if (c.weights.dtype != GG_FP32 && c.weights.dtype != GG_FP16 && c.weights.dtype != GG_BF16) {
    reject_type(weights, std::string("has dtype ") + c.weights.dtype_name +
                             ", float32, float16 or bfloat16 is needed; convert it");
  }
  check_memory(c.weights, weights);
  if (c.weights.rank != 2 || c.weights.shape[0] != c.tokens || c.weights.shape[1] != c.top_k) {
    reject(weights, "has shape " + shape(c.weights) + " but inverse has " + shape(c.inverse) + "; they need to be equal");
  }
  check_contiguous(c.weights, weights);
  check_device(c.weights, weights, c.y, "y");
}

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

bool shares(const Tensor& x, const Tensor& y) {
  if (x.rank == 0 || is_empty(x) || is_empty(y)) return false;
  const Extent a = extent(x), b = extent(y);
  return a.high > b.low && b.high > a.low && !(x.rank == 2 && side_by_side(x, y));
}

// `add` may be the output itself: each element is read before it is written.
void check_out_overlap(const CheckedCombine& c) {
  const ArgumentName out{"combine", "out"};
  const auto check = [&](const Tensor& read, const char* what) {
    if (shares(read, c.out_view)) {
      reject(out, std::string("shares memory with ") + what +
                      ", which would be read while it is being written; pass a separate tensor");
    }
  };
  check(c.y, "y");
  check(c.inverse, "inverse");
  check(c.weights, "weights");
  const bool in_place = c.added.data == c.out_view.data && c.added.stride[0] == c.out_view.stride[0];
  if (!in_place) check(c.added, "add");
}

}  // namespace

CheckedRoute check_route(const RouteArguments& arguments) {
  CheckedRoute route;
  const ArgumentName ids{"route", "topk_ids"}, map{"route", "expert_map"};
  route.ids = view(ids, arguments.topk_ids);
  check_integers(route.ids, ids, 2);
  check_entries(route.ids, ids);
  if (arguments.experts < 1 || arguments.experts > most_experts) {
    throw ValueError("route: experts is " + std::to_string(arguments.experts) + ", 1 to " +
                     std::to_string(most_experts) + " are possible");
  }
  route.expert_map = view_if_given(map, arguments.expert_map);
  if (route.expert_map.rank > 0) {
    check_integers(route.expert_map, map, 1);
    check_device(route.expert_map, map, route.ids, "topk_ids");
  }
  take(route, arguments.topk_ids, route.ids, "topk_ids");
  route.tokens = route.ids.shape[0], route.top_k = route.ids.shape[1], route.groups = arguments.experts;
  return route;
}

CheckedCombine check_combine(const CombineArguments& arguments) {
  CheckedCombine c;
  const ArgumentName inverse{"combine", "inverse"}, out{"combine", "out"};
  c.y = view({"combine", "y"}, arguments.y);
  check_rows(c.y, {"combine", "y"});
  c.inverse = view(inverse, arguments.inverse);
  if (std::strcmp(c.inverse.dtype_name, "int32") != 0) {
    reject_type(inverse, std::string("has dtype ") + c.inverse.dtype_name + ", int32 is needed, as route gives it");
  }
  check_integers(c.inverse, inverse, 2);
  check_entries(c.inverse, inverse);
  check_device(c.inverse, inverse, c.y, "y");
  c.tokens = c.inverse.shape[0], c.top_k = c.inverse.shape[1], c.columns = c.y.shape[1];
  c.weights = view_if_given({"combine", "weights"}, arguments.weights);
  if (c.weights.rank > 0) check_weights(c);
  c.added = view_if_given({"combine", "add"}, arguments.add);
  if (c.added.rank > 0) check_added(c);
  if (!arguments.out.is_none()) {
    Gradients recorded;
    c.out_view = view(out, arguments.out);
    check_output(c.out_view, out, arguments.out, {c.tokens, c.columns, c.y.dtype, "the sum"}, recorded);
    check_rows(c.out_view, out);
    check_device(c.out_view, out, c.y, "y");
    check_out_overlap(c);
    c.out = py::reinterpret_borrow<py::object>(arguments.out);
  }
  take(c, arguments.y, c.y, "y");
  c.dtype = c.out_dtype = c.y.dtype;
  return c;
}

void check_gradients(const CombineArguments& arguments) {
  GradientCheck check("combine");
  check(arguments.y, "y");
  check(arguments.weights, "weights");
  check(arguments.add, "add");
}

bool is_vectorized(const CheckedCombine& c) {
  const auto aligned = [&](const Tensor& t) {
    return t.rank == 0 || (t.data % 16 == 0 && (t.shape[0] <= 1 || t.stride[0] % 8 == 0));
  };
  return c.columns % 8 == 0 && aligned(c.y) && aligned(c.added) && aligned(c.out_view);
}

}  // namespace gg
