#include "launch/memory_kernels.hpp"

#include <algorithm>
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

const gg_artifact& kernel_of(const GatherRows& g, const Device& device) {
  const bool vectorized = g.columns % 8 == 0 && moves_by_vectors(g.source, g.source_rows, g.source_row, g.source_col) &&
                          moves_by_vectors(g.out, g.rows, g.out_row, 1);
  return vector_artifact(device, GG_GATHER, g.dtype, vectorized);
}

const gg_artifact& kernel_of(const Activate& a, const Device& device) {
  const bool vectorized = a.columns % 8 == 0 && moves_by_vectors(a.z, a.rows, a.z_row, a.z_col) &&
                          moves_by_vectors(a.out, a.rows, a.out_row, a.out_col) && a.z_group % 8 == 0 &&
                          a.out_group % 8 == 0;
  return vector_artifact(device, GG_ACTIVATE, a.dtype, vectorized);
}

const gg_artifact& kernel_of(const AddParts& a, const Device& device) {
  const bool vectorized = a.columns % 8 == 0 && a.sums % 16 == 0 &&
                          moves_by_vectors(a.out, a.rows, a.out_row, a.out_col) &&
                          (a.groups <= 1 || a.out_group % 8 == 0);
  return vector_artifact(device, GG_ADD_PARTS, a.dtype, vectorized);
}

// Rows that a launch writes.
int64_t row_count(const GatherRows& g) { return g.rows; }
int64_t row_count(const Activate& a) { return a.rows; }
int64_t row_count(const AddParts& a) { return a.groups * a.rows; }

// That it writes: in floating point, as sizes below 2^31 may make more than 64 bits count.
template <typename Rows>
double bytes_of_rows(const Rows& rows) {
  return static_cast<double>(row_count(rows)) * static_cast<double>(rows.columns) * element_bytes(rows.dtype);
}

unsigned grid_of(const gg_artifact& kernel, int64_t rows, int64_t columns, const char* function) {
  const int64_t programs = ceil_div(rows, kernel.block_m) * ceil_div(columns, kernel.block_n);
  if (std::max(programs, rows) <= most_programs) return static_cast<unsigned>(programs);
  throw ValueError(std::string(function) + ": " + std::to_string(rows) + " rows of " + std::to_string(columns) +
                   " columns are more than one launch of " + gg_form_names[kernel.form] + " takes; split the rows");
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
  set_activation(arguments, a.activation);
  arguments.group_rows = static_cast<int32_t>(a.group_rows), arguments.counts = a.counts;
  arguments.y_group = static_cast<uint64_t>(a.z_group), arguments.out_group = static_cast<uint64_t>(a.out_group);
  return arguments;
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
RepeatedLaunch prepared_rows(const Rows& rows, const char* function, const Device& device) {
  const gg_artifact& kernel = kernel_of(rows, device);
  return {kernel, device, grid_of(kernel, row_count(rows), rows.columns, function), arguments_of(rows)};
}

}  // namespace

double moving_us(double bytes, const Device& device) {
  const double gb_s = device.memory_gb_s > 0 ? device.memory_gb_s : unknown_gb_s;
  return launch_us + bytes / (gb_s * copy_efficiency * 1e3);
}

RepeatedLaunch prepared(const GatherRows& gather, const char* function, const Device& device) {
  return prepared_rows(gather, function, device);
}

RepeatedLaunch prepared(const Activate& activate, const char* function, const Device& device) {
  return prepared_rows(activate, function, device);
}

RepeatedLaunch prepared(const AddParts& sum, const char* function, const Device& device) {
  return prepared_rows(sum, function, device);
}

MemoryChoice choice_of(const GatherRows& gather, const Device& device) {
  return {&kernel_of(gather, device), moving_us(2 * bytes_of_rows(gather), device)};
}

MemoryChoice choice_of(const Activate& activate, const Device& device) {
  const int matrices = activate.activation.gated() ? 3 : 2;
  return {&kernel_of(activate, device), moving_us(matrices * bytes_of_rows(activate), device)};
}

MemoryChoice choice_of(const AddParts& sum, const Device& device) {
  const double parts = static_cast<double>(sum.parts) * element_bytes(GG_FP32) / element_bytes(sum.dtype);
  const int written = sum.factors.reads_output() ? 2 : 1;
  return {&kernel_of(sum, device), moving_us((parts + written) * bytes_of_rows(sum), device)};
}

}  // namespace gg
