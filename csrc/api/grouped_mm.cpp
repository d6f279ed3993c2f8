#include "api/grouped_mm.hpp"

#include <pybind11/gil_safe_call_once.h>

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

// Launches the product of arrays on a GPU, into an output that is made where none was given.
void launch(CheckedGrouped& product, py::handle variant) {
  const Device& on = device(product.device);
  make_missing_output(product);
  const GroupedProblem& problem = product.problem;
  if (!problem.has_outputs()) return;
  if (!is_plain(problem)) return launch_parts(product, on, variant);
  const Choice choice = variant.is_none() ? cached_choice(problem, on, Use::once)
                                          : forced(py::cast<std::string>(variant), problem, on, "grouped_mm");
  const CUstream stream = product.framework->current_stream(product.like, product.device);
  const Launch one(problem, choice, on, *product.framework, product.like, stream);
  launch_in_order(on, *product.framework, stream, [&] { one.run(stream); });
}

bool requires_grad(py::handle array, const char* what) { return framework_of(array, what, -1).requires_grad(array); }

bool is_transposed(const Tensor& matrices) {
  return matrices.stride[matrices.rank - 2] == 1 && matrices.stride[matrices.rank - 1] != 1;
}

// The output as torch's autograd knows it, with the product behind it. It is launched before and not by the autograd
// function, so that a call that is recorded goes this way once, and costs the host one call into Python more. What it
// keeps is said in gg_runtime/torch/gradients.py.
py::object with_gradients(const GroupedArguments& given, const CheckedGrouped& product) {
  PYBIND11_CONSTINIT static py::gil_safe_call_once_and_store<py::object> stored;
  const py::object& record = stored
                                 .call_once_and_store_result([] {
                                   return py::module_::import("gg_runtime.torch.eager").attr("record_grouped_mm");
                                 })
                                 .get_stored();
  const bool needs_a = requires_grad(given.mat_a, "mat_a"), needs_b = requires_grad(given.mat_b, "mat_b");
  const bool transposed = needs_a != needs_b && is_transposed(needs_b ? product.views.b : product.views.a);
  const py::none nothing;
  const py::tuple kept = py::make_tuple(needs_b ? given.mat_a : nothing, needs_a ? given.mat_b : nothing, given.offs);
  return record(given.mat_a, given.mat_b, given.bias,
                py::make_tuple(product.out, kept, transposed, given.batch_invariant));
}

}  // namespace

py::object grouped_mm(const GroupedArguments& arguments, py::handle variant) {
  const bool recording = needs_framework(arguments);
  if (recording && any_stands_for_others(arguments)) return stand_in();
  if (recording && !may_have_gradients(arguments)) return recorded();
  CheckedGrouped product = check_grouped(arguments);
  if (product.device_type == DeviceType::cpu) return recording ? recorded() : on_cpu(product.out_dtype);
  if (recording && !has_gradients(product)) return recorded();
  launch(product, variant);
  return recording ? with_gradients(arguments, product) : product.out;
}

}  // namespace gg
