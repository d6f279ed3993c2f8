// A layer of experts that was checked, selected and made ready once, to be launched again and again on the same memory.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <string>
#include <vector>

#include "forms/check_experts.hpp"
#include "launch/experts.hpp"
#include "launch/plan_memory.hpp"

namespace gg {

class ExpertsPlan {
 public:
  explicit ExpertsPlan(const ExpertsArguments& arguments);
  ~ExpertsPlan();
  ExpertsPlan(const ExpertsPlan&) = delete;
  ExpertsPlan& operator=(const ExpertsPlan&) = delete;

  // On the current stream of the arrays' device, whichever that is now.
  void run() const;

  pybind11::object out() const { return out_; }  // None on the CPU
  gg_dtype out_dtype() const { return out_dtype_; }
  bool on_cpu() const { return on_cpu_; }
  std::vector<std::string> variants() const { return variants_; }  // of the launches, in order
  size_t launches() const { return variants_.size(); }

 private:
  void keep_arrays(const ExpertsArguments& arguments);

  const Framework* framework_ = nullptr;
  const Device* device_ = nullptr;
  pybind11::object like_, out_;
  gg_dtype out_dtype_ = GG_ANY_DTYPE;
  bool on_cpu_ = false;
  std::vector<pybind11::object> kept_;  // the caller's arrays
  std::vector<ExpertsLaunches> chunks_;
  std::vector<std::string> variants_;
  std::shared_ptr<PlanMemory> memory_;  // the workspace, where the caller passed none
};

}  // namespace gg
