// From a product and a choice to one kernel launch.
#pragma once

#include <pybind11/pybind11.h>

#include <utility>
#include <vector>

#include "arrays/tensor.hpp"
#include "driver/module.hpp"
#include "forms/problem.hpp"
#include "launch/repeated_launch.hpp"
#include "select/select.hpp"

namespace gg {

// A kernel with its arguments, ready for a device. Addresses are fixed; the stream is not.
class Launch {
 public:
  // Loads the kernel and writes the problem's record: into the kernel's own parameters if it fits there, else, by
  // upload() on `stream`, into memory of the framework's allocator. The descriptors' scratch comes from there too.
  // Nothing waits for the GPU.
  Launch(const Problem& problem, const Choice& choice, const Device& device, const Framework& framework,
         pybind11::handle like, CUstream stream);

  // Within launch_in_order.
  void run(CUstream stream) const { launch(*artifact_, *kernel_, *device_, grid_, stream, arguments_); }

  unsigned grid() const { return grid_; }
  unsigned resident_ctas() const { return resident_ctas_; }  // CTAs that the device holds at once
  bool by_value() const { return arguments_.problems == 0; }

  // What owns the device memory that `run` uses, if any: the record, the descriptors. It may be handed over.
  const std::vector<pybind11::object>& memory() const { return memory_; }
  std::vector<pybind11::object> take_memory() { return std::exchange(memory_, {}); }

 private:
  void allocate(size_t record_bytes, const Framework& framework, pybind11::handle like);

  const Device* device_;
  const gg_artifact* artifact_;
  const LoadedKernel* kernel_;
  ProblemRecord record_;
  std::vector<pybind11::object> memory_;  // owners of the record, where it is on the device, and of the descriptors
  gg_arguments arguments_{};
  unsigned grid_ = 0, resident_ctas_ = 0;
};

}  // namespace gg
