#include "api/activation_gradient.hpp"

#include "api/on_cpu.hpp"
#include "launch/activation_gradient.hpp"

namespace py = pybind11;

namespace gg {
GradientRows gradient_rows(const CheckedActivationGradient& c, double scale) {
  GradientRows g;
  g.z = c.z.data, g.z_row = c.z.stride[0], g.z_col = c.z.stride[1];
  g.dh = c.dh.data, g.dh_row = c.dh.stride[0], g.dh_col = c.dh.stride[1];
  g.rows = c.rows, g.columns = c.columns;
  if (c.weights.rank > 0) g.weights = c.weights.data, g.weight_dtype = c.weights.dtype;
  g.slot = c.slot.data, g.entries = c.entries, g.scale = scale;
  if (c.ends.rank > 0) g.ends = c.ends.data, g.groups = c.ends.shape[0];
  g.activation = c.activation;
  g.dz = c.dz.data, g.dz_row = c.dz.stride[0], g.dz_col = c.dz.stride[1];
  if (c.h.rank > 0) g.h = c.h.data, g.h_row = c.h.stride[0], g.h_col = c.h.stride[1];
  g.dweights = c.dweights.data;
  g.dtype = c.dtype;
  return g;
}

py::object activation_gradient(const ActivationGradientArguments& arguments) {
  const CheckedActivationGradient checked = check_activation_gradient(arguments);
  if (checked.device_type == DeviceType::cpu) return on_cpu(checked.out_dtype);
  const Device& on = device(checked.device);
  if (checked.rows == 0) return py::none();
  const CUstream stream = checked.framework->current_stream(checked.like, checked.device);
  const RepeatedLaunch gradient = prepared(gradient_rows(checked, arguments.scale), on);
  launch_in_order(on, *checked.framework, stream, [&] { gradient.run(stream); });
  return py::none();
}

}  // namespace gg
