// Arguments in, a list of groups out: every rule that the caller's arrays must keep, in one place and one order.
#pragma once

#include <pybind11/pybind11.h>

#include <vector>

#include "arrays/tensor.hpp"
#include "forms/list_problem.hpp"

namespace gg {

// What the caller passed to group_gemm, Plan or explain; None where it is left out.
struct ListArguments {
  pybind11::handle group_a, group_b, out, out_dtype, scale_a, scale_b;
};

// The caller's arrays after all checks but those of `out`.
struct Inputs {
  pybind11::tuple arrays_a, arrays_b;  // what the caller passed, kept against changes to its lists
  pybind11::object scale_array_a, scale_array_b;
  std::vector<Tensor> a, b;
  Tensor scale_a{}, scale_b{};           // without data: 1
  const Framework* framework = nullptr;  // that of A[0]; null for an empty list
  pybind11::object like;                 // A[0]
  gg_dtype dtype = GG_ANY_DTYPE, out_dtype = GG_ANY_DTYPE;
  DeviceType device_type = DeviceType::cpu;
  int device = 0;

  size_t size() const { return a.size(); }
};

// Lengths, ranks, dtypes, devices, inner sizes and scales. Throws TypeError or ValueError that names the array.
Inputs check_inputs(const ListArguments& arguments);

// Throws RuntimeError where an input requires grad: nothing here records one.
void check_gradients(const Inputs& inputs);

// Shape, dtype and device of each output; that no output shares memory with itself, another output or an input; that no
// gradient is lost. Returns the views.
std::vector<Tensor> check_outputs(const pybind11::tuple& out, const Inputs& inputs);

// One group for each index, addresses and strides filled in.
std::vector<Group> make_groups(const Inputs& inputs, const std::vector<Tensor>& outputs);

// The items of a list or tuple as they are now. Throws TypeError with `name` for anything else.
pybind11::tuple snapshot(pybind11::handle object, const char* name);

}  // namespace gg
