#include "launch/activation_gradient.hpp"

#include "forms/guarantees.hpp"
#include "launch/memory_kernels.hpp"
#include "select/catalog.hpp"

namespace gg {
namespace {

gg_arguments arguments_of(const GradientRows& g) {
  gg_arguments arguments{};
  const auto stride = [](int64_t elements) { return static_cast<uint64_t>(elements); };
  arguments.y = g.z, arguments.y_row = stride(g.z_row), arguments.y_col = stride(g.z_col);
  arguments.dh = g.dh, arguments.dh_row = stride(g.dh_row), arguments.dh_col = stride(g.dh_col);
  arguments.out = g.dz, arguments.out_row = stride(g.dz_row), arguments.out_col = stride(g.dz_col);
  arguments.h = g.h, arguments.h_row = stride(g.h_row), arguments.h_col = stride(g.h_col);
  arguments.weights = g.weights, arguments.weight_kind = weight_kind(g.weight_dtype);
  arguments.weight_index = g.slot, arguments.entries = static_cast<int32_t>(g.entries);
  arguments.dweights = g.dweights;
  arguments.ends = g.ends, arguments.groups = static_cast<int32_t>(g.groups);
  arguments.rows = static_cast<int32_t>(g.rows), arguments.columns = static_cast<int32_t>(g.columns);
  set_activation(arguments, g.activation);
  arguments.factor_bits = bits_of(static_cast<float>(g.scale));
  return arguments;
}

}  // namespace

const gg_artifact& kernel_of(const GradientRows& g, const Device& device) {
  const bool vectorized = g.columns % 8 == 0 && moves_by_vectors(g.z, g.rows, g.z_row, g.z_col) &&
                          moves_by_vectors(g.dh, g.rows, g.dh_row, g.dh_col) &&
                          moves_by_vectors(g.dz, g.rows, g.dz_row, g.dz_col) &&
                          moves_by_vectors(g.h, g.rows, g.h_row, g.h_col);
  return vector_artifact(device, GG_ACTIVATION_GRADIENT, g.dtype, vectorized);
}

RepeatedLaunch prepared(const GradientRows& gradient, const Device& device) {
  const gg_artifact& kernel = kernel_of(gradient, device);
  const auto programs = static_cast<unsigned>(ceil_div(gradient.rows, kernel.block_m));  // rows are below 2^31
  return {kernel, device, programs, arguments_of(gradient)};
}

RepeatedLaunch prepared_row_sums(const GradientRows& g, int64_t tiles, const Device& device) {
  const gg_artifact& kernel = other_artifact(device, GG_ADD_ROW_SUMS, [](const gg_artifact&) { return true; });
  gg_arguments arguments{};
  arguments.y = g.row_sums, arguments.parts = static_cast<int32_t>(tiles);
  arguments.weight_index = g.slot, arguments.entries = static_cast<int32_t>(g.entries);
  arguments.dweights = g.dweights;
  arguments.ends = g.ends, arguments.groups = static_cast<int32_t>(g.groups);
  arguments.rows = static_cast<int32_t>(g.rows);
  arguments.factor_bits = bits_of(static_cast<float>(g.scale));
  return {kernel, device, static_cast<unsigned>(ceil_div(g.rows, kernel.block_m)), arguments};
}

}  // namespace gg
