#include "api/combine.hpp"

#include <cstring>
#include <string>

#include "api/on_cpu.hpp"
#include "forms/guarantees.hpp"
#include "launch/memory_kernels.hpp"
#include "select/catalog.hpp"

namespace py = pybind11;

namespace gg {
namespace {

constexpr int64_t most_programs = (int64_t{1} << 31) - 1;

void make_missing_output(CheckedCombine& sum) {
  if (sum.out) return;
  sum.out = std::move(sum.framework->empty(sum.like, sum.out_dtype, {{sum.tokens, sum.columns}})[0]);
  sum.out_view = sum.framework->view(sum.out, "out", -1);
}

gg_arguments arguments_of(const CheckedCombine& sum, double scale) {
  gg_arguments arguments{};
  arguments.y = sum.y.data, arguments.y_row = sum.y.stride[0];
  arguments.inverse = sum.inverse.data;
  arguments.weights = sum.weights.rank > 0 ? sum.weights.data : 0;
  arguments.weight_kind = weight_kind(sum.weights.dtype);
  arguments.added = sum.added.rank > 0 ? sum.added.data : 0, arguments.added_row = sum.added.stride[0];
  arguments.out = sum.out_view.data, arguments.out_row = sum.out_view.stride[0];
  arguments.rows = static_cast<int32_t>(sum.y.shape[0]);
  arguments.top_k = static_cast<int32_t>(sum.top_k);
  arguments.columns = static_cast<int32_t>(sum.columns);
  const auto factor = static_cast<float>(scale);
  std::memcpy(&arguments.factor_bits, &factor, sizeof factor);
  return arguments;
}

}  // namespace

py::object combine(const CombineArguments& arguments) {
  CheckedCombine sum = check_combine(arguments);
  check_gradients(arguments);
  if (sum.device_type == DeviceType::cpu) return on_cpu(sum.out_dtype);
  const Device& on = device(sum.device);
  make_missing_output(sum);
  if (sum.tokens == 0 || sum.columns == 0) return sum.out;
  const CUstream stream = sum.framework->current_stream(sum.like, sum.device);
  const int alignment = is_vectorized(sum) ? 16 : 2;
  const gg_artifact& kernel = other_artifact(
      on, GG_COMBINE, [&](const gg_artifact& one) { return one.dtype == sum.dtype && one.alignment == alignment; });
  const int64_t programs = sum.tokens * ceil_div(sum.columns, kernel.block_n);
  if (programs > most_programs) {
    throw ValueError("combine: " + std::to_string(sum.tokens) + " tokens of " + std::to_string(sum.columns) +
                     " columns are more than one launch takes; split the tokens");
  }
  launch_once(kernel, on, static_cast<unsigned>(programs), arguments_of(sum, arguments.scale), *sum.framework, stream);
  return sum.out;
}

}  // namespace gg
