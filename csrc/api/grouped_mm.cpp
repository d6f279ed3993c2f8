#include "api/grouped_mm.hpp"

#include "api/on_cpu.hpp"
#include "api/outputs.hpp"
#include "api/record_product.hpp"
#include "launch/launch.hpp"
#include "launch/plan_memory.hpp"
#include "launch/product_parts.hpp"

namespace py = pybind11;

namespace gg {
namespace {

void launch_parts(const CheckedGrouped& product, const Device& on, py::handle variant) {
  const CUstream stream = product.framework->current_stream(product.like, product.device);
  const std::string name = variant.is_none() ? "" : py::cast<std::string>(variant);
  run_product(product.problem, {}, name, on, *product.framework, product.like, stream);
}

// Launches the product of arrays on a GPU, into an output that is made where none was given.
void launch(CheckedGrouped& product, py::handle variant) {
  const Device& on = device(product.device);
  make_missing_output(product);
  const GroupedProblem& problem = product.problem;
  if (!problem.has_outputs()) return;
  if (!is_plain(problem)) return launch_parts(product, on, variant);
  const Choice choice = variant.is_none() ? cached_choice(problem, on)
                                          : forced(py::cast<std::string>(variant), problem, on, "grouped_mm");
  const CUstream stream = product.framework->current_stream(product.like, product.device);
  Launch one(problem, choice, on, *product.framework, product.like, stream);
  keep_call_memory(one.memory(), product.framework->pools_captures(), on, stream);
  launch_in_order(on, *product.framework, stream, [&] { one.run(stream); });
}

// Of arrays whose gradients are recorded. The launch comes first: the GPU works meanwhile.
py::object grouped_mm_recorded(const GroupedArguments& arguments, py::handle variant, const FrameworkPart& part) {
  if (any_stands_for_others(arguments)) return stand_in();
  try {
    const Framework& framework = framework_of(arguments.mat_a, "mat_a", -1);
    if (!may_have_gradients(arguments) || framework.in_forward_mode()) return recorded();
    CheckedGrouped product = check_grouped(arguments);
    if (product.device_type == DeviceType::cpu || !has_gradients(product)) return recorded();
    launch(product, variant);
    return record_product(arguments, part, product.views.a, product.views.b, product.out);
  } catch (const std::exception&) {
    // Arrays of torch.func's transforms have no memory, and torch lets no autograd function in. Whether there are any
    // takes 0.1 us to ask.
    if (framework_of(arguments.mat_a, "mat_a", -1).transforms_functions()) return recorded();
    throw;
  }
}

}  // namespace

py::object grouped_mm(const GroupedArguments& arguments, py::handle variant) {
  const FrameworkPart part = framework_part(arguments);
  if (part.needed) return grouped_mm_recorded(arguments, variant, part);
  CheckedGrouped product = check_grouped(arguments);
  if (product.device_type == DeviceType::cpu) return on_cpu(product.out_dtype);
  launch(product, variant);
  return product.out;
}

}  // namespace gg
