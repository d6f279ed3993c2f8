// The launches of a layer of experts: route, up projection, down projection, combine, for each chunk of tokens.
#pragma once

#include <pybind11/pybind11.h>

#include "forms/check_experts.hpp"
#include "launch/combine.hpp"
#include "launch/product_parts.hpp"
#include "launch/route.hpp"

namespace gg {

// Whose memory is used, and where.
struct ExpertsPlace {
  const Device& device;
  const Framework& framework;
  pybind11::handle like;
  uint64_t workspace;  // on workspace_alignment, of the checked layer's memory.bytes
  CUstream stream;     // of a launch that brings something to the device first
};

// What one chunk asks of each kernel. Without rows only the sum is there: zeros, or what is added.
struct ExpertsChunk {
  RouteSlots slots;
  GroupedProblem up, down;
  PartsOptions up_options, down_options;
  SumRows sum;
  bool has_rows;
};

// The tokens from `first` on, as many as a chunk has or are left. There have to be tokens and columns.
ExpertsChunk chunk_of(const CheckedExperts& layer, int64_t first, uint64_t workspace);

// Gives `take` each step of the layer, ready to be run, in order: RouteLaunches, ProductParts twice, RepeatedLaunch.
// A step that was taken may be run before the next is made. The layer has outputs.
template <typename Take>
void make_steps(const CheckedExperts& layer, const ExpertsPlace& to, Use use, Take&& take) {
  const auto product = [&](const GroupedProblem& problem, const PartsOptions& options) {
    if (!problem.has_outputs()) return;
    take(ProductParts(problem, options, "", use, "fused_experts", to.device, to.framework, to.like, to.stream));
  };
  for (int64_t first = 0; first < layer.sizes.tokens; first += layer.chunk) {
    const ExpertsChunk chunk = chunk_of(layer, first, to.workspace);
    if (chunk.has_rows) {
      take(prepared(chunk.slots, to.device, to.framework));
      product(chunk.up, chunk.up_options);
      product(chunk.down, chunk.down_options);
    }
    take(prepared(chunk.sum, "fused_experts", to.device, to.framework));
  }
}

}  // namespace gg
