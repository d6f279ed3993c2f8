// Products of lists of matrices: check, select, launch, in that order.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <string>
#include <vector>

#include "forms/check_list.hpp"
#include "launch/launch.hpp"
#include "launch/plan_memory.hpp"

namespace gg {

// C[i] = A[i] @ B[i] for lists on a CUDA device; returns the outputs, new ones or those of `out`. For lists on the
// CPU, which are only checked, the name of the dtype that outputs are to have.
pybind11::object group_gemm(const ListArguments& arguments);

// A list that was checked, selected and packed once, to be launched again and again on the same memory.
class Plan {
 public:
  // `variant` names an embedded artifact, or is empty to let the library choose. With `checked`, each run makes sure
  // that the arrays are where they were.
  Plan(const ListArguments& arguments, const std::string& variant, bool checked);
  ~Plan();

  // On the current stream of the tensors' device, whichever that is now: one launch, or two where the list was divided
  // (parts.hpp). Throws RuntimeError where the Plan cannot run yet, and where `checked` finds an array that has moved.
  void run() const;

  pybind11::object out() const { return out_; }
  gg_dtype out_dtype() const { return inputs_.out_dtype; }
  bool on_cpu() const { return inputs_.device_type == DeviceType::cpu; }
  // Of the launch with the most products.
  std::string variant() const { return choice_.artifact ? choice_.artifact->name : ""; }
  unsigned grid() const { return launches_.empty() ? 0 : launches_[0]->grid(); }
  unsigned slots() const { return launches_.empty() ? 0 : launches_[0]->slots(); }

  size_t launches() const { return launches_.size(); }
  bool by_value() const;  // no launch reads a list in device memory

 private:
  void launch_on(CUstream stream) const;
  void check_arrays() const;

  Inputs inputs_;
  pybind11::object out_;
  pybind11::tuple outputs_;
  std::vector<Tensor> c_;
  bool checked_;
  const Device* device_ = nullptr;
  Choice choice_{};
  std::vector<std::unique_ptr<Launch>> launches_;
  std::shared_ptr<PlanMemory> memory_;  // of all launches; null where no kernel needs any
};

}  // namespace gg
