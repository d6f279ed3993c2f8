#include "api/grouped_mm.hpp"

#include "arrays/dtype.hpp"
#include "launch/launch.hpp"

namespace py = pybind11;

namespace gg {
namespace {

py::object make_output(GroupedProblem& problem, const Framework& framework, py::handle like) {
  py::object made = std::move(framework.empty(like, problem.out_dtype, {{problem.rows, problem.columns}})[0]);
  const Tensor view = framework.view(made, "out", -1);
  problem.set_output(view.data, view.stride[0], view.stride[1]);
  return made;
}

}  // namespace

py::object grouped_mm(const GroupedArguments& arguments) {
  CheckedGrouped checked = check_grouped(arguments);
  check_gradients(arguments);
  if (checked.device_type == DeviceType::cpu) return py::str(full_name(checked.problem.out_dtype));
  const Device& on = device(checked.device);
  GroupedProblem& problem = checked.problem;
  const Framework& framework = *checked.framework;
  py::object out = arguments.out.is_none() ? make_output(problem, framework, arguments.mat_a)
                                           : py::reinterpret_borrow<py::object>(arguments.out);
  if (!problem.has_outputs()) return out;
  const Choice choice = arguments.variant.is_none()
                            ? cached_choice(problem, on, Use::once)
                            : forced(py::cast<std::string>(arguments.variant), problem, on, "grouped_mm");
  const CUstream stream = framework.current_stream(arguments.mat_a, checked.device);
  Launch(problem, choice, on, framework, arguments.mat_a, stream).run(stream);
  return out;
}

}  // namespace gg
