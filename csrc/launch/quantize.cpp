#include "launch/quantize.hpp"

#include <algorithm>
#include <string>

#include "driver/error.hpp"
#include "forms/guarantees.hpp"
#include "select/catalog.hpp"

namespace gg {
namespace {

constexpr int in_graphs_since = 12030;  // the driver that captures launches which overlap

const gg_artifact& kernel_of(const QuantizeRows& q, const char* function, const Device& device) {
  const gg_form form = q.activation.kind == GG_ACTIVATION_NONE ? GG_QUANTIZE : GG_ACTIVATE_QUANTIZE;
  if (catalog(device).others[form].empty()) {
    throw UnsupportedError(std::string(function) + ": no embedded kernel makes float8_e4m3fn on " + device.name +
                           " (sm_" + std::to_string(device.sm) + "); a GPU of compute capability 9.0 is needed");
  }
  const bool vectorized = q.x % 16 == 0 && q.out % 16 == 0 && q.x_col == 1 && q.columns % 16 == 0 &&
                          (q.rows <= 1 || (q.x_row % 8 == 0 && q.out_row % 16 == 0));
  return vector_artifact(device, form, q.dtype, vectorized);
}

gg_arguments arguments_of(const QuantizeRows& q) {
  gg_arguments arguments{};
  arguments.y = q.x, arguments.y_row = static_cast<uint64_t>(q.x_row), arguments.y_col = static_cast<uint64_t>(q.x_col);
  arguments.out = q.out, arguments.out_row = static_cast<uint64_t>(q.out_row);
  arguments.scales = q.scales, arguments.scale_row = static_cast<uint64_t>(q.scale_row);
  arguments.scale_col = static_cast<uint64_t>(q.scale_col);
  arguments.rows = static_cast<int32_t>(q.rows), arguments.columns = static_cast<int32_t>(q.columns);
  arguments.ends = q.ends, arguments.groups = static_cast<int32_t>(q.groups);
  arguments.index = q.index, arguments.source_rows = static_cast<int32_t>(q.x_rows);
  arguments.weights = q.row_weights, arguments.weight_kind = q.weight_kind, arguments.weight_index = q.weight_index;
  arguments.overlaps = q.overlaps && driver().version >= in_graphs_since;
  set_activation(arguments, q.activation);
  return arguments;
}

}  // namespace

// Programs walk down columns of blocks, as many in each as the device holds at once, or one.
RepeatedLaunch prepared(const QuantizeRows& quantize, const char* function, const Device& device) {
  const gg_artifact& kernel = kernel_of(quantize, function, device);
  const int64_t held = int64_t{load(kernel, device).blocks_per_multiprocessor} * device.multiprocessors;
  const int64_t columns = ceil_div(quantize.columns, kernel.block_n);
  const int64_t rows = std::clamp<int64_t>(held / columns, 1, ceil_div(quantize.rows, kernel.block_m));
  return {kernel, device, static_cast<unsigned>(rows * columns), arguments_of(quantize)};
}

// A byte is written for the two of each element that is read; of a gated activation for four.
MemoryChoice choice_of(const QuantizeRows& quantize, const char* function, const Device& device) {
  const int bytes_of_each = quantize.activation.gated() ? 5 : 3;
  const double elements = static_cast<double>(quantize.rows) * static_cast<double>(quantize.columns);
  return {&kernel_of(quantize, function, device), moving_us(bytes_of_each * elements, device)};
}

}  // namespace gg
