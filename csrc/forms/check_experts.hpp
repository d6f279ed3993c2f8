// What fused_experts is given: checked, and free of any framework.
#pragma once

#include <pybind11/pybind11.h>

#include "arrays/tensor.hpp"
#include "forms/checks.hpp"
#include "forms/experts_memory.hpp"
#include "forms/grouped_problem.hpp"

namespace gg {

// What the caller passed; None where it is left out.
struct ExpertsArguments {
  pybind11::handle x, w1, w2, topk_weights, topk_ids, activation, gate_up, swiglu_limit, b1, b2, expert_map, add, out,
      workspace, max_rows, w1_scale, w2_scale;
  bool weights_on_input, batch_invariant;
  double scale;
};

struct CheckedExperts : CheckedCall {
  // No rank where one is left out.
  Tensor x{}, w1{}, w2{}, weights{}, ids{}, b1{}, b2{}, expert_map{}, added{}, out_view{}, workspace{};
  Tensor w1_scale{}, w2_scale{};  // of e4m3 weights, for each 128x128
  pybind11::object out;           // null where it was not given
  Activation activation;
  ExpertsSizes sizes{};
  ExpertsMemory memory{};  // of a chunk
  int64_t chunk = 0;       // tokens that go at once
  bool weights_on_input = false, batch_invariant = false;
  double scale = 1;
  Gradients recorded;  // whether they are is asked once

  bool has_outputs() const { return sizes.tokens > 0 && sizes.hidden > 0; }
};

// All checks, those of `out` and `workspace` too where they are given. Throws TypeError or ValueError that names the
// argument.
CheckedExperts check_experts(const ExpertsArguments& arguments);

// Throws RuntimeError where an input requires grad: nothing here records one.
void check_gradients(const ExpertsArguments& arguments, const CheckedExperts& layer, const char* caller);

// Whether the arrays' framework has to take part: it records gradients of an input, or an input stands for others.
bool needs_framework(const ExpertsArguments& arguments);
bool any_stands_for_others(const ExpertsArguments& arguments);

// Sizes that the caller tells, and the bytes of their workspace. Throws ValueError for one that no call can have.
struct WorkspaceArguments {
  int64_t tokens, top_k, experts, hidden, intermediate;
  pybind11::handle activation, max_rows;
  bool quantized;
};
size_t workspace_bytes(const WorkspaceArguments& arguments);

}  // namespace gg
