#include "api/grouped_mm.hpp"

#include "arrays/dtype.hpp"
#include "launch/launch.hpp"

namespace py = pybind11;

namespace gg {
namespace {

py::object make_output(GroupedProblem& ragged, const Framework& framework, py::handle like) {
  py::object made = std::move(framework.empty(like, ragged.out_dtype, {{ragged.rows, ragged.columns}})[0]);
  const Tensor view = framework.view(made, "out", -1);
  ragged.c = view.data, ragged.c_row = view.stride[0], ragged.c_col = view.stride[1];
  return made;
}

}  // namespace

py::object grouped_mm(const GroupedArguments& arguments) {
  CheckedGrouped checked = check_grouped(arguments);
  check_gradients(arguments);
  if (checked.device_type == DeviceType::cpu) return py::str(full_name(checked.ragged.out_dtype));
  const Device& on = device(checked.device);
  GroupedProblem& ragged = checked.ragged;
  const Framework& framework = *checked.framework;
  py::object out = arguments.out.is_none() ? make_output(ragged, framework, arguments.mat_a)
                                           : py::reinterpret_borrow<py::object>(arguments.out);
  if (!ragged.has_outputs()) return out;
  finish(ragged);
  const Choice choice = arguments.variant.is_none()
                            ? cached_choice(ragged, on, Use::once)
                            : forced(py::cast<std::string>(arguments.variant), ragged, on, "grouped_mm");
  const CUstream stream = framework.current_stream(arguments.mat_a, checked.device);
  Launch(ragged, choice, on, framework, arguments.mat_a, stream).run(stream);
  return out;
}

}  // namespace gg
