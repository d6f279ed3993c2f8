#include "api/grouped_mm.hpp"

#include "api/on_cpu.hpp"
#include "api/outputs.hpp"
#include "launch/launch.hpp"
#include "launch/product_parts.hpp"

namespace py = pybind11;

namespace gg {
namespace {

void launch_parts(const CheckedGrouped& product, const Device& on, py::handle variant) {
  const CUstream stream = product.framework->current_stream(product.like, product.device);
  const std::string name = variant.is_none() ? "" : py::cast<std::string>(variant);
  run_product(product.problem, {}, name, on, *product.framework, product.like, stream);
}

}  // namespace

py::object grouped_mm(const GroupedArguments& arguments, py::handle variant) {
  if (needs_framework(arguments)) return any_stands_for_others(arguments) ? stand_in() : recorded();
  CheckedGrouped product = check_grouped(arguments);
  if (product.device_type == DeviceType::cpu) return on_cpu(product.out_dtype);
  const Device& on = device(product.device);
  make_missing_output(product);
  const GroupedProblem& problem = product.problem;
  if (!problem.has_outputs()) return product.out;
  if (!is_plain(problem)) {
    launch_parts(product, on, variant);
    return product.out;
  }
  const Choice choice = variant.is_none() ? cached_choice(problem, on, Use::once)
                                          : forced(py::cast<std::string>(variant), problem, on, "grouped_mm");
  const CUstream stream = product.framework->current_stream(product.like, product.device);
  const Launch launch(problem, choice, on, *product.framework, product.like, stream);
  launch_in_order(on, *product.framework, stream, [&] { launch.run(stream); });
  return product.out;
}

}  // namespace gg
