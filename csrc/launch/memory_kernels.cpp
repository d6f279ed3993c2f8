#include "launch/memory_kernels.hpp"

#include <algorithm>
#include <cstring>
#include <string>

#include "arrays/dtype.hpp"
#include "driver/error.hpp"
#include "forms/guarantees.hpp"
#include "select/catalog.hpp"

namespace gg {
namespace {

constexpr int64_t most_programs = (int64_t{1} << 31) - 1;

// These kernels move a copy's bytes at about a copy's rate, which is this much of what the driver says of the memory.
constexpr double copy_efficiency = 0.85, launch_us = 2.0;
constexpr double unknown_gb_s = 1555;  // an A100's, where the driver does not say

double predict_us(int64_t elements, const Device& device) { return moving_us(2 * elements, device); }

bool aligned(uint64_t address, int64_t rows, int64_t row, int64_t column) {
  return address % 16 == 0 && column == 1 && (rows <= 1 || row % 8 == 0);
}

const gg_artifact& kernel_for(const Device& device, gg_form form, gg_dtype dtype, bool vectorized) {
  const int alignment = vectorized ? 16 : 2;
  return other_artifact(device, form,
                        [&](const gg_artifact& one) { return one.dtype == dtype && one.alignment == alignment; });
}

const gg_artifact& kernel_of(const GatherRows& g, const Device& device) {
  const bool vectorized = g.columns % 8 == 0 && aligned(g.source, g.source_rows, g.source_row, g.source_col) &&
                          aligned(g.out, g.rows, g.out_row, 1);
  return kernel_for(device, GG_GATHER, g.dtype, vectorized);
}

const gg_artifact& kernel_of(const Activate& a, const Device& device) {
  const bool vectorized = a.columns % 8 == 0 && aligned(a.z, a.rows, a.z_row, a.z_col) &&
                          aligned(a.out, a.rows, a.out_row, a.out_col) && a.z_group % 8 == 0 && a.out_group % 8 == 0;
  return kernel_for(device, GG_ACTIVATE, a.dtype, vectorized);
}

const gg_artifact& kernel_of(const AddParts& a, const Device& device) {
  const bool vectorized = a.columns % 8 == 0 && a.sums % 16 == 0 && aligned(a.out, a.rows, a.out_row, a.out_col) &&
                          (a.groups <= 1 || a.out_group % 8 == 0);
  return kernel_for(device, GG_ADD_PARTS, a.dtype, vectorized);
}

// Rows that a launch writes.
int64_t row_count(const GatherRows& g) { return g.rows; }
int64_t row_count(const Activate& a) { return a.rows; }
int64_t row_count(const AddParts& a) { return a.groups * a.rows; }

unsigned grid_of(const gg_artifact& kernel, int64_t rows, int64_t columns) {
  const int64_t programs = ceil_div(rows, kernel.block_m) * ceil_div(columns, kernel.block_n);
  if (std::max(programs, rows) <= most_programs) return static_cast<unsigned>(programs);
  throw ValueError(std::string(gg_form_names[kernel.form]) + ": " + std::to_string(rows) + " rows of " +
                   std::to_string(columns) + " columns are more than one launch takes; split the rows");
}

gg_arguments arguments_of(const GatherRows& g) {
  gg_arguments arguments{};
  arguments.y = g.source, arguments.y_row = static_cast<uint64_t>(g.source_row);
  arguments.y_col = static_cast<uint64_t>(g.source_col), arguments.source_rows = static_cast<int32_t>(g.source_rows);
  arguments.index = g.index, arguments.index_bytes = g.index_bytes;
  arguments.out = g.out, arguments.out_row = static_cast<uint64_t>(g.out_row);
  arguments.rows = static_cast<int32_t>(g.rows), arguments.columns = static_cast<int32_t>(g.columns);
  arguments.ends = g.ends, arguments.groups = static_cast<int32_t>(g.groups);
  arguments.weights = g.row_weights, arguments.weight_kind = g.weight_kind, arguments.weight_index = g.weight_index;
  return arguments;
}

gg_arguments arguments_of(const Activate& a) {
  gg_arguments arguments{};
  arguments.y = a.z, arguments.y_row = static_cast<uint64_t>(a.z_row);
  arguments.y_col = static_cast<uint64_t>(a.z_col);
  arguments.out = a.out, arguments.out_row = static_cast<uint64_t>(a.out_row);
  arguments.out_col = static_cast<uint64_t>(a.out_col);
  arguments.rows = static_cast<int32_t>(a.rows), arguments.columns = static_cast<int32_t>(a.columns);
  arguments.ends = a.ends, arguments.groups = static_cast<int32_t>(a.groups);
  arguments.activation = a.kind, arguments.gate_order = a.order;
  arguments.group_rows = static_cast<int32_t>(a.group_rows), arguments.counts = a.counts;
  arguments.y_group = static_cast<uint64_t>(a.z_group), arguments.out_group = static_cast<uint64_t>(a.out_group);
  return arguments;
}

int32_t bits_of(float value) {
  int32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

gg_arguments arguments_of(const AddParts& a) {
  gg_arguments arguments{};
  arguments.y = a.sums, arguments.y_row = static_cast<uint64_t>(a.columns);
  arguments.out = a.out, arguments.out_group = static_cast<uint64_t>(a.out_group);
  arguments.out_row = static_cast<uint64_t>(a.out_row), arguments.out_col = static_cast<uint64_t>(a.out_col);
  arguments.groups = static_cast<int32_t>(a.groups), arguments.parts = static_cast<int32_t>(a.parts);
  arguments.rows = static_cast<int32_t>(a.rows), arguments.columns = static_cast<int32_t>(a.columns);
  arguments.alpha_at = a.factors.alpha_at, arguments.alpha_bits = bits_of(a.factors.alpha);
  arguments.beta_at = a.factors.beta_at, arguments.beta_bits = bits_of(a.factors.beta);
  return arguments;
}

template <typename Rows>
RepeatedLaunch prepared_rows(const Rows& rows, const Device& device) {
  const gg_artifact& kernel = kernel_of(rows, device);
  return {kernel, device, grid_of(kernel, row_count(rows), rows.columns), arguments_of(rows)};
}

}  // namespace

double moving_us(int64_t bytes, const Device& device) {
  const double gb_s = device.memory_gb_s > 0 ? device.memory_gb_s : unknown_gb_s;
  return launch_us + static_cast<double>(bytes) / (gb_s * copy_efficiency * 1e3);
}

RepeatedLaunch prepared(const GatherRows& gather, const Device& device) { return prepared_rows(gather, device); }

RepeatedLaunch prepared(const Activate& activation, const Device& device) { return prepared_rows(activation, device); }

RepeatedLaunch prepared(const AddParts& sum, const Device& device) { return prepared_rows(sum, device); }

MemoryChoice choice_of(const GatherRows& gather, const Device& device) {
  return {&kernel_of(gather, device), predict_us(2 * gather.rows * gather.columns, device)};
}

MemoryChoice choice_of(const Activate& activation, const Device& device) {
  const Activation kind{activation.kind};
  return {&kernel_of(activation, device),
          predict_us((kind.gated() ? 3 : 2) * activation.rows * activation.columns, device)};
}

MemoryChoice choice_of(const AddParts& sum, const Device& device) {
  const int64_t elements = sum.groups * sum.rows * sum.columns;
  const int64_t written = int64_t{element_bytes(sum.dtype)} * (sum.factors.reads_output() ? 2 : 1);
  return {&kernel_of(sum, device), moving_us(elements * (sum.parts * element_bytes(GG_FP32) + written), device)};
}

}  // namespace gg
