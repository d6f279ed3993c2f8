#include "api/quantize.hpp"

#include "api/on_cpu.hpp"
#include "forms/check_quantize.hpp"
#include "launch/quantize.hpp"

namespace py = pybind11;

namespace gg {

py::object quantize_1x128(py::handle x) {
  if (stands_for_others(x, {"quantize_1x128", "x"})) return stand_in();
  const CheckedQuantize checked = check_quantize(x);
  if (checked.device_type == DeviceType::cpu) return on_cpu(checked.out_dtype);
  const Device& on = device(checked.device);
  const Framework& by = *checked.framework;
  const py::object out = by.empty(checked.like, GG_E4M3, {{checked.rows, checked.columns}})[0];
  const py::object scales = by.empty(checked.like, GG_FP32, {{checked.rows, checked.blocks}})[0];
  py::tuple both = py::make_tuple(out, scales);
  if (checked.rows == 0 || checked.columns == 0) return both;
  QuantizeRows rows;
  rows.x = checked.x.data, rows.x_row = checked.x.stride[0], rows.x_col = checked.x.stride[1];
  rows.rows = checked.rows, rows.columns = checked.columns;
  rows.out = by.view(out, "out", -1).data, rows.out_row = checked.columns;
  rows.scales = by.view(scales, "scales", -1).data, rows.scale_row = checked.blocks;
  rows.dtype = checked.dtype;
  const CUstream stream = by.current_stream(checked.like, checked.device);
  const RepeatedLaunch launch = prepared(rows, "quantize_1x128", on);
  launch_in_order(on, by, stream, [&] { launch.run(stream); });
  return both;
}

}  // namespace gg
