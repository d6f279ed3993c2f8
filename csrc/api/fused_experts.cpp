#include "api/fused_experts.hpp"

#include "api/on_cpu.hpp"
#include "api/outputs.hpp"
#include "launch/experts.hpp"
#include "launch/plan_memory.hpp"

namespace py = pybind11;

namespace gg {

py::object fused_experts(const ExpertsArguments& arguments) {
  if (needs_framework(arguments)) return any_stands_for_others(arguments) ? stand_in() : recorded();
  CheckedExperts layer = check_experts(arguments);
  if (layer.device_type == DeviceType::cpu) return on_cpu(layer.out_dtype);
  const Device& on = device(layer.device);
  const Framework& framework = *layer.framework;
  make_missing_output(layer);
  if (!layer.has_outputs()) return layer.out;
  std::vector<py::object> owners;
  const uint64_t workspace = workspace_of(layer, on, owners);
  const CUstream stream = framework.current_stream(layer.like, layer.device);
  const auto keep = [&](const std::vector<py::object>& memory) {
    keep_call_memory(memory, framework.pools_captures(), on, stream);
  };
  keep(owners);
  for_chunks(layer, {on, framework, layer.like, workspace, stream}, [&](ExpertsLaunches chunk) {
    std::vector<py::object> of_chunk;
    chunk.take_memory(of_chunk);
    keep(of_chunk);
    launch_in_turn(on, framework, stream, [&] { chunk.run(stream); });
  });
  return layer.out;
}

}  // namespace gg
