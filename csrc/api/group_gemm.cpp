#include "api/group_gemm.hpp"

#include "api/on_cpu.hpp"
#include "api/outputs.hpp"
#include "launch/launch.hpp"
#include "launch/plan_memory.hpp"
#include "select/parts.hpp"

namespace py = pybind11;

namespace gg {
py::object group_gemm(const ListArguments& arguments) {
  CheckedList list = take_lists(arguments);
  if (needs_framework(arguments, list)) return any_stands_for_others(arguments, list) ? stand_in() : recorded();
  check_taken(arguments, list);
  if (list.size() == 0) return py::list();
  if (list.device_type == DeviceType::cpu) return on_cpu(list.out_dtype);
  const Device& on = device(list.device);
  make_missing_outputs(list);
  py::list out(list.arrays_out);
  ListProblem problem = problem_of(list);
  if (!problem.has_outputs()) return std::move(out);
  const CUstream stream = list.framework->current_stream(list.like, list.device);
  for (const Part& part : divide(std::move(problem), on, Use::once)) {
    Launch launch(part.problem, part.choice, on, *list.framework, list.like, stream);
    keep_call_memory(launch.memory(), list.framework->pools_captures(), on, stream);
    launch_in_order(on, *list.framework, stream, [&] { launch.run(stream); });
  }
  return std::move(out);
}

}  // namespace gg
