// The launches of a layer of experts: route, up projection, down projection, combine, for each chunk of tokens. What
// e4m3 weights are multiplied with is quantized before each projection, or by the up projection for the other.
#pragma once

#include <pybind11/pybind11.h>

#include <optional>
#include <vector>

#include "forms/check_experts.hpp"
#include "launch/combine.hpp"
#include "launch/product_parts.hpp"
#include "launch/quantize.hpp"
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
  std::optional<QuantizeRows> up_input, down_input;  // of e4m3 weights; no down_input: `up` makes it
  SumRows sum;
  bool has_rows;
  size_t workspace_bytes;  // that it uses: no more than the layer's memory.bytes
};

// The tokens from `first` on, as many as a chunk has or are left. There have to be tokens and columns.
ExpertsChunk chunk_of(const CheckedExperts& layer, int64_t first, uint64_t workspace, const Device& device);

// Stands for a workspace that nobody has yet: kernels depend on its alignment alone.
constexpr uint64_t imagined_workspace = uint64_t{1} << 46;

// What the kernels that are taken on the device use of the workspace, in all chunks.
size_t used_workspace_bytes(const CheckedExperts& layer, const Device& device);

// The launches of a chunk, ready to be run, again and again.
class ExpertsLaunches {
 public:
  ExpertsLaunches(const ExpertsChunk& chunk, const ExpertsPlace& to);

  // Within launch_in_turn.
  void run(CUstream stream) const;

  std::vector<const gg_artifact*> artifacts() const;  // in the order of the launches

  // Hands what owns the memory that `run` uses besides the workspace, if any, over to `owners`.
  void take_memory(std::vector<pybind11::object>& owners);

 private:
  void add_product(std::optional<ProductParts>& product, const GroupedProblem& problem, const PartsOptions& options,
                   const ExpertsPlace& to);

  void add_quantize(std::optional<RepeatedLaunch>& launch, const std::optional<QuantizeRows>& rows,
                    const Device& device);

  std::optional<RouteLaunches> route_;
  std::optional<RepeatedLaunch> up_input_, down_input_;
  std::optional<ProductParts> up_, down_;
  RepeatedLaunch combine_;
};

// Gives `take` the launches of each chunk of the layer, in order. Those that were taken may be run before the next are
// made. The layer has outputs.
template <typename Take>
void for_chunks(const CheckedExperts& layer, const ExpertsPlace& to, Take&& take) {
  for (int64_t first = 0; first < layer.sizes.tokens; first += layer.chunk) {
    take(ExpertsLaunches(chunk_of(layer, first, to.workspace, to.device), to));
  }
}

}  // namespace gg
