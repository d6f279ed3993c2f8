// A call of any form that was checked, selected and written once, to be launched again and again on the same memory.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <string>
#include <vector>

#include "forms/check_grouped.hpp"
#include "forms/check_list.hpp"
#include "launch/launch.hpp"
#include "launch/plan_memory.hpp"
#include "launch/product_parts.hpp"

namespace gg {

class Plan {
 public:
  // `variant` names an embedded artifact, or is empty to let the library choose. With `checked`, each run makes sure
  // that the arrays are where they were.
  Plan(const ListArguments& arguments, const std::string& variant, bool checked);
  Plan(const GroupedArguments& arguments, const std::string& variant, bool checked);
  ~Plan();
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  // On the current stream of the arrays' device, whichever that is now: one launch, two where a list was divided
  // (select/parts.hpp), or several where a grouped product was (product_parts.hpp). Throws RuntimeError where the Plan
  // cannot run yet, and where `checked` finds an array that has moved.
  void run() const;

  pybind11::object out() const { return out_; }  // a list of arrays, or the one of a grouped product
  gg_dtype out_dtype() const { return out_dtype_; }
  bool on_cpu() const { return on_cpu_; }
  // Of the launch with the most products.
  std::string variant() const { return choice_.artifact ? choice_.artifact->name : ""; }
  unsigned grid() const { return first() ? first()->grid() : 0; }
  unsigned resident_ctas() const { return first() ? first()->resident_ctas() : 0; }

  size_t launches() const { return parts_ ? parts_->launches() : launches_.size(); }
  bool by_value() const;  // no launch reads its problem in device memory

 private:
  // An array and what was seen of it.
  struct Watched {
    pybind11::object array;
    const char* what;
    int index;
    Tensor seen;
  };

  // Whether there is a GPU to run on; its device is then known.
  bool take(const CheckedCall& call, const ArgumentName& first, const std::string& variant);
  void watch(pybind11::handle array, const char* what, int index, const Tensor& seen);
  void watch_all(const pybind11::tuple& arrays, const char* what, const std::vector<Tensor>& seen);
  // Of a list: one array for all products, or a tuple of one for each.
  void watch_scales(const pybind11::object& given, const char* what, const Tensor& one,
                    const std::vector<Tensor>& each);
  void add(const Problem& problem, const Choice& choice, CUstream stream);
  void add(const GroupedProblem& problem, const std::string& variant, CUstream stream);
  const Launch* first() const { return parts_ ? &parts_->product() : launches_.empty() ? nullptr : launches_[0].get(); }
  void keep_memory(CUstream stream);
  void check_arrays() const;

  const Framework* framework_ = nullptr;
  pybind11::object like_, out_;
  std::vector<pybind11::object> kept_;  // the arrays, or tuples of them
  std::vector<Watched> watched_;        // the same arrays, where the Plan is checked
  gg_dtype out_dtype_ = GG_ANY_DTYPE;
  bool on_cpu_ = false;
  bool checked_;
  const Device* device_ = nullptr;
  Choice choice_{};
  std::vector<std::unique_ptr<Launch>> launches_;
  std::unique_ptr<ProductParts> parts_;    // of a grouped product that takes several kernels, in place of launches_
  std::vector<pybind11::object> scratch_;  // that the launches need, until memory_ has it
  std::shared_ptr<PlanMemory> memory_;     // of all launches; null where no kernel needs any
};

}  // namespace gg
