#include "api/plan.hpp"

#include <algorithm>

#include "api/outputs.hpp"
#include "arrays/array_protocols.hpp"
#include "driver/error.hpp"
#include "forms/checks.hpp"
#include "select/parts.hpp"

namespace py = pybind11;

namespace gg {
namespace {

// The launches of a list.
std::vector<Part> parts_of(ListProblem problem, const Device& on, const std::string& variant) {
  if (variant.empty()) return divide(std::move(problem), on, Use::repeated);
  const Choice choice = forced(variant, problem, on, "Plan");
  std::vector<Part> parts;
  parts.push_back({std::move(problem), choice});
  return parts;
}

// A factor is seen with one dimension where its array has none.
bool same_memory(const Tensor& x, const Tensor& y) {
  return x.data == y.data && std::max(x.rank, 1) == std::max(y.rank, 1) && std::equal(x.shape, x.shape + 3, y.shape) &&
         std::equal(x.stride, x.stride + 3, y.stride);
}

}  // namespace

Plan::Plan(const ListArguments& arguments, const std::string& variant, bool checked)
    : out_(py::list()),
      checked_(checked) {
  release_retired();
  CheckedList list = check_list(arguments);
  check_gradients(list, "Plan");
  if (!take(list, {"group_gemm", "A", 0}, variant)) return;
  make_missing_outputs(list);
  out_ = py::list(list.arrays_out);
  kept_ = {list.arrays_a, list.arrays_b, list.arrays_out};
  watch_all(list.arrays_a, "A", list.a);
  watch_all(list.arrays_b, "B", list.b);
  watch_scales(list.scale_array_a, "scale_a", list.scale_a, list.scales_a);
  watch_scales(list.scale_array_b, "scale_b", list.scale_b, list.scales_b);
  watch_all(list.arrays_out, "out", list.c);
  ListProblem problem = problem_of(list);
  if (!problem.has_outputs()) return;
  const CUstream stream = framework_->current_stream(like_, list.device);
  for (const Part& part : parts_of(std::move(problem), *device_, variant)) add(part.problem, part.choice, stream);
  keep_memory(stream);
}

Plan::Plan(const GroupedArguments& arguments, const std::string& variant, bool checked)
    : out_(py::none()),
      checked_(checked) {
  release_retired();
  CheckedGrouped product = check_grouped(arguments);
  check_gradients(arguments, "Plan");
  if (!take(product, {"grouped_mm", "mat_a"}, variant)) return;
  make_missing_output(product);
  out_ = product.out;
  const GroupedViews& views = product.views;
  watch(arguments.mat_a, "mat_a", -1, views.a);
  watch(arguments.mat_b, "mat_b", -1, views.b);
  watch(arguments.offs, "offs", -1, views.offs);
  watch(arguments.bias, "bias", -1, views.bias);
  watch(arguments.scale_a, "scale_a", -1, views.scale_a);
  watch(arguments.scale_b, "scale_b", -1, views.scale_b);
  watch(arguments.a_index, "a_index", -1, views.index);
  watch(arguments.preactivation, "preactivation", -1, views.preactivation);
  watch(arguments.b_index, "b_index", -1, views.b_index);
  watch(arguments.counts, "counts", -1, views.counts);
  if (views.alpha.rank > 0) watch(arguments.alpha, "alpha", -1, views.alpha);
  if (views.beta.rank > 0) watch(arguments.beta, "beta", -1, views.beta);
  watch(out_, "out", -1, views.out);
  if (!product.problem.has_outputs()) return;
  const CUstream stream = framework_->current_stream(like_, product.device);
  add(product.problem, variant, stream);
  keep_memory(stream);
}

Plan::~Plan() {
  memory_.reset();
  release_retired();
}

bool Plan::take(const CheckedCall& call, const ArgumentName& first, const std::string& variant) {
  framework_ = call.framework, like_ = call.like, out_dtype_ = call.out_dtype;
  on_cpu_ = call.device_type == DeviceType::cpu;
  if (framework_ && framework_->immutable()) {
    throw TypeError("Plan: " + name(first) + " is " + kind_of(like_) +
                    ", of a framework whose arrays never change, and run() writes the same outputs again; call " +
                    first.function + " each time");
  }
  if (!on_cpu_) {
    device_ = &device(call.device);
    return true;
  }
  if (!variant.empty()) {
    const std::string where = framework_ ? name(first) + " is on the CPU; move them" : "the list is empty; pass some";
    throw ValueError("Plan: variant " + variant + " needs matrices on a CUDA device, and " + where +
                     ", or leave variant out");
  }
  return false;
}

void Plan::watch(py::handle array, const char* what, int index, const Tensor& seen) {
  if (!array || array.is_none()) return;
  kept_.push_back(py::reinterpret_borrow<py::object>(array));
  if (checked_) watched_.push_back({kept_.back(), what, index, seen});
}

void Plan::watch_all(const py::tuple& arrays, const char* what, const std::vector<Tensor>& seen) {
  if (!checked_) return;
  for (size_t i = 0; i < seen.size(); i++) {
    watched_.push_back({py::reinterpret_borrow<py::object>(PyTuple_GET_ITEM(arrays.ptr(), static_cast<Py_ssize_t>(i))),
                        what, static_cast<int>(i), seen[i]});
  }
}

void Plan::watch_scales(const py::object& given, const char* what, const Tensor& one, const std::vector<Tensor>& each) {
  if (each.empty()) {
    watch(given, what, -1, one);
  } else {
    kept_.push_back(given);
    watch_all(py::reinterpret_borrow<py::tuple>(given), what, each);
  }
}

void Plan::add(const Problem& problem, const Choice& choice, CUstream stream) {
  if (launches_.empty()) choice_ = choice;
  launches_.push_back(std::make_unique<Launch>(problem, choice, *device_, *framework_, like_, stream));
  Launch& launch = *launches_.back();
  // A captured upload is repeated by its graph, whatever becomes of the Plan, and of the launches to come.
  if (!launch.by_value()) keep_call_memory(launch.memory(), framework_->pools_captures(), *device_, stream);
  for (py::object& owner : launch.take_memory()) scratch_.push_back(std::move(owner));
}

void Plan::add(const GroupedProblem& problem, const std::string& variant, CUstream stream) {
  if (is_plain(problem)) {
    const Choice choice =
        variant.empty() ? cached_choice(problem, *device_) : forced(variant, problem, *device_, "Plan");
    add(static_cast<const Problem&>(problem), choice, stream);
    return;
  }
  parts_ =
      std::make_unique<ProductParts>(problem, PartsOptions{}, variant, "Plan", *device_, *framework_, like_, stream);
  choice_ = parts_->choice();
  scratch_ = parts_->take_memory();
}

void Plan::keep_memory(CUstream stream) {
  if (scratch_.empty()) return;
  const CurrentContext current(*device_);
  memory_ = make_retirable<PlanMemory>(std::move(scratch_), !by_value(), framework_->pools_captures(), stream);
}

void Plan::run() const {
  if (!first()) return;
  if (checked_) check_arrays();
  const CUstream stream = framework_->current_stream(like_, device_->ordinal);
  const auto run_all = [&] {
    launch_with(memory_, stream, [&] {
      for (const auto& launch : launches_) launch->run(stream);
      if (parts_) parts_->run(stream);
    });
  };
  if (parts_) launch_in_turn(*device_, *framework_, stream, run_all);
  else launch_in_order(*device_, *framework_, stream, run_all);
}

void Plan::check_arrays() const {
  for (const Watched& one : watched_) {
    if (same_memory(framework_of(one.array, one.what, one.index).view(one.array, one.what, one.index), one.seen)) {
      continue;
    }
    throw RuntimeError("Plan: " + array_name(one.what, one.index) +
                       " has other memory, another shape or other strides than when the Plan was made; make a new "
                       "Plan");
  }
}

bool Plan::by_value() const {
  if (parts_) return parts_->product().by_value();
  return !launches_.empty() &&
         std::all_of(launches_.begin(), launches_.end(), [](const auto& launch) { return launch->by_value(); });
}

}  // namespace gg
