// The gradient of a down projection and of the activation before it: one kernel that does both, or parts.
//
//   launches      read                               write
//   fused         rows by an index, B, z             dz, h, and gradients of weights, or row sums of tiles
//   add_row_sums  the row sums, where a row has      gradients of weights
//                 several tiles
//   or: product   rows by an index, B                dh, rounded, in memory of its own
//   activation_   dh, z                              dz, h, gradients of weights
//   gradient
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <optional>
#include <vector>

#include "launch/activation_gradient.hpp"
#include "launch/product_parts.hpp"

namespace gg {

// Whether one kernel does it: as predicted, or as the caller says.
enum class Fusion { by_prediction, always, never };

// `product` gives dh = A[index] @ B[g]; its C is not there, and its rows and ends are those of `gradient`, whose dh is
// not there either. There have to be rows.
class DownGradient {
 public:
  // `like` is what memory is allocated like. Throws UnsupportedError for Fusion::always where no kernel does it.
  DownGradient(const GroupedProblem& product, const GradientRows& gradient, Fusion fusion, const Device& device,
               const Framework& framework, pybind11::handle like, CUstream stream);

  // Within launch_in_order.
  void run(CUstream stream) const;

  // What owns the memory that `run` uses, if any.
  const std::vector<pybind11::object>& memory() const { return memory_; }

 private:
  void make_fused(GroupedProblem fused, GradientRows gradient, const Device& device, const Framework& framework,
                  pybind11::handle like, CUstream stream);
  void make_parts(const GroupedProblem& product, GradientRows gradient, const Device& device,
                  const Framework& framework, pybind11::handle like, CUstream stream);

  std::vector<pybind11::object> memory_;
  std::unique_ptr<Launch> fused_;
  std::unique_ptr<ProductParts> product_;
  std::optional<RepeatedLaunch> after_;  // none where nobody wants gradients of weights, or they are there
};

}  // namespace gg
