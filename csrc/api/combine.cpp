#include "api/combine.hpp"

#include "api/on_cpu.hpp"
#include "launch/combine.hpp"

namespace py = pybind11;

namespace gg {
namespace {

void make_missing_output(CheckedCombine& sum) {
  if (sum.out) return;
  sum.out = std::move(sum.framework->empty(sum.like, sum.out_dtype, {{sum.tokens, sum.columns}})[0]);
  sum.out_view = sum.framework->view(sum.out, "out", -1);
}

SumRows rows_of(const CheckedCombine& checked, double scale) {
  SumRows sum;
  sum.y = checked.y.data, sum.y_row = checked.y.stride[0], sum.rows = checked.y.shape[0];
  sum.inverse = checked.inverse.data;
  sum.tokens = checked.tokens, sum.top_k = checked.top_k, sum.columns = checked.columns;
  if (checked.weights.rank > 0) sum.weights = checked.weights.data, sum.weight_dtype = checked.weights.dtype;
  if (checked.added.rank > 0) sum.added = checked.added.data, sum.added_row = checked.added.stride[0];
  sum.out = checked.out_view.data, sum.out_row = checked.out_view.stride[0];
  sum.dtype = checked.dtype, sum.scale = scale;
  return sum;
}

}  // namespace

py::object combine(const CombineArguments& arguments) {
  if (stands_for_others(arguments.y, {"combine", "y"})) return stand_in();
  CheckedCombine sum = check_combine(arguments);
  check_gradients(arguments);
  if (sum.device_type == DeviceType::cpu) return on_cpu(sum.out_dtype);
  const Device& on = device(sum.device);
  make_missing_output(sum);
  if (sum.tokens == 0 || sum.columns == 0) return sum.out;
  const CUstream stream = sum.framework->current_stream(sum.like, sum.device);
  const RepeatedLaunch launch = prepared(rows_of(sum, arguments.scale), "combine", on);
  launch_in_order(on, *sum.framework, stream, [&] { launch.run(stream); });
  return sum.out;
}

}  // namespace gg
