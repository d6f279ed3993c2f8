#include "api/fused_experts.hpp"

#include "api/on_cpu.hpp"

namespace py = pybind11;

namespace gg {

py::object fused_experts(const ExpertsArguments& arguments) {
  const CheckedExperts layer = check_experts(arguments);
  check_gradients(arguments);
  if (layer.device_type == DeviceType::cpu) return on_cpu(layer.out_dtype);
  throw UnsupportedError("fused_experts: this build has the CPU path alone");
}

}  // namespace gg
