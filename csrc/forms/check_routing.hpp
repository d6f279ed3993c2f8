// What route and combine are given: checked, and free of any framework.
#pragma once

#include <pybind11/pybind11.h>

#include "arrays/tensor.hpp"
#include "forms/checks.hpp"

namespace gg {

// Of the largest routing kernel, less a bin for what is dropped.
constexpr int64_t most_experts = 1023;

// What the caller passed; None where it is left out.
struct RouteArguments {
  pybind11::handle topk_ids, expert_map;
  int64_t experts;
};

struct CheckedRoute : CheckedCall {
  Tensor ids{}, expert_map{};  // no rank where there is no map
  int64_t tokens, top_k, groups;
};

// Throws TypeError or ValueError that names the argument.
CheckedRoute check_route(const RouteArguments& arguments);

struct CombineArguments {
  pybind11::handle y, inverse, weights, add, out;
  double scale;
};

struct CheckedCombine : CheckedCall {
  Tensor y{}, inverse{}, weights{}, added{}, out_view{};  // no rank where one is left out
  pybind11::object out;                                   // null where it was not given
  int64_t tokens, top_k, columns;
};

CheckedCombine check_combine(const CombineArguments& arguments);

// Throws RuntimeError where an input requires grad: nothing here records one.
void check_gradients(const CombineArguments& arguments);

}  // namespace gg
