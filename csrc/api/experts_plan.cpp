#include "api/experts_plan.hpp"

#include <utility>

#include "api/outputs.hpp"
#include "driver/error.hpp"

namespace py = pybind11;

namespace gg {

ExpertsPlan::ExpertsPlan(const ExpertsArguments& arguments) : out_(py::none()) {
  release_retired();
  CheckedExperts layer = check_experts(arguments);
  check_gradients(arguments, layer, "ExpertsPlan");
  framework_ = layer.framework, like_ = layer.like, out_dtype_ = layer.out_dtype;
  on_cpu_ = layer.device_type == DeviceType::cpu;
  if (framework_->immutable()) {
    throw TypeError("ExpertsPlan: x is " + kind_of(like_) +
                    ", of a framework whose arrays never change, and run() writes the same output again; call "
                    "fused_experts each time");
  }
  if (on_cpu_) return;
  device_ = &device(layer.device);
  make_missing_output(layer);
  out_ = layer.out;
  keep_arrays(arguments);
  if (!layer.has_outputs()) return;
  std::vector<py::object> owners;
  const uint64_t workspace = workspace_of(layer, *device_, owners);
  const CUstream stream = framework_->current_stream(like_, layer.device);
  for_chunks(layer, {*device_, *framework_, like_, workspace, stream}, [&](ExpertsLaunches chunk) {
    for (const gg_artifact* one : chunk.artifacts()) variants_.push_back(one->name);
    chunk.take_memory(owners);
    chunks_.push_back(std::move(chunk));
  });
  if (owners.empty()) return;
  const CurrentContext current(*device_);
  memory_ = make_retirable<PlanMemory>(std::move(owners), false, framework_->pools_captures(), stream);
}

ExpertsPlan::~ExpertsPlan() {
  memory_.reset();
  release_retired();
}

void ExpertsPlan::keep_arrays(const ExpertsArguments& a) {
  for (const py::handle array : {a.x, a.w1, a.w2, a.topk_weights, a.topk_ids, a.b1, a.b2, a.expert_map, a.add,
                                 py::handle(out_), a.workspace, a.w1_scale, a.w2_scale}) {
    if (!array.is_none()) kept_.push_back(py::reinterpret_borrow<py::object>(array));
  }
}

void ExpertsPlan::run() const {
  if (chunks_.empty()) return;
  const CUstream stream = framework_->current_stream(like_, device_->ordinal);
  launch_in_turn(*device_, *framework_, stream, [&] {
    launch_with(memory_, stream, [&] {
      for (const ExpertsLaunches& chunk : chunks_) chunk.run(stream);
    });
  });
}

}  // namespace gg
