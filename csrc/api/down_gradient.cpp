#include "api/down_gradient.hpp"

#include "api/activation_gradient.hpp"
#include "api/on_cpu.hpp"
#include "launch/down_gradient.hpp"
#include "launch/plan_memory.hpp"

namespace py = pybind11;

namespace gg {
namespace {

// dh as an array that is nowhere yet.
Tensor imagined(const CheckedGrouped& product) {
  Tensor dh = product.views.a;
  dh.data = 0, dh.rank = 2;
  dh.shape[0] = product.sizes.m, dh.shape[1] = product.sizes.n;
  dh.stride[0] = product.sizes.n, dh.stride[1] = 1;
  return dh;
}

// What is written shares no memory with what the product reads.
void check_outputs(const CheckedActivationGradient& rows, const CheckedGrouped& product) {
  const GroupedViews& v = product.views;
  for (const auto& [out, name] : {std::pair{&rows.dz, "dz"}, {&rows.h, "h"}, {&rows.dweights, "dweights"}}) {
    const ArgumentName argument{"down_gradient", name};
    for (const auto& [read, read_name] : {std::pair{&v.a, "gradient"}, {&v.b, "weight"}, {&v.index, "token"}}) {
      check_separate(*out, argument, *read, read_name);
    }
  }
}

Fusion fusion_of(py::handle fused) {
  if (fused.is_none()) return Fusion::by_prediction;
  return py::cast<bool>(fused) ? Fusion::always : Fusion::never;
}

}  // namespace

py::object down_gradient(const GroupedArguments& product_arguments, const ActivationGradientArguments& row_arguments,
                         py::handle fused) {
  const CheckedGrouped product = check_grouped(product_arguments);
  const Tensor dh = imagined(product);
  const CheckedActivationGradient checked = check_activation_gradient(row_arguments, &dh);
  check_outputs(checked, product);
  if (product.device_type == DeviceType::cpu) return on_cpu(checked.out_dtype);
  const Device& on = device(product.device);
  if (checked.rows == 0) return py::none();
  const Framework& framework = *product.framework;
  const CUstream stream = framework.current_stream(product.like, product.device);
  DownGradient gradient(product.problem, gradient_rows(checked, row_arguments.scale), fusion_of(fused), on, framework,
                        product.like, stream);
  keep_call_memory(gradient.memory(), framework.pools_captures(), on, stream);
  launch_in_order(on, framework, stream, [&] { gradient.run(stream); });
  return py::none();
}

}  // namespace gg
