#include "api/explain.hpp"

#include "driver/described.hpp"
#include "driver/error.hpp"
#include "driver/gpus.hpp"
#include "forms/list_record.hpp"
#include "launch/product_parts.hpp"
#include "launch/upload.hpp"
#include "select/catalog.hpp"
#include "select/parts.hpp"
#include "select/select.hpp"

namespace py = pybind11;

namespace gg {
namespace {

// Outputs as group_gemm would make them, at addresses that differ: explain allocates nothing.
void imagine_missing_outputs(CheckedList& list) {
  constexpr uint64_t apart = uint64_t{1} << 32;
  if (list.has_outputs) return;
  for (size_t i = 0; i < list.size(); i++) {
    Tensor t = list.a[i];
    t.data = (i + 1) * apart;
    t.shape[1] = t.stride[0] = list.b[i].shape[1];
    t.stride[1] = 1;
    list.c.push_back(t);
  }
}

// Kernels that a list takes: one, and those that bring it to device memory if it is too long for parameters. For a
// device that was only described nobody can make descriptors: which of their words differ is then an estimate.
size_t launches(const ListProblem& problem, const Choice& choice, const Device& device) {
  const bool is_estimate = takes_descriptors(*choice.artifact) && device.ordinal < 0;
  return 1 + (is_estimate ? problem.expected_upload_count(*choice.artifact, upload_capacity(device))
                          : upload_count(problem, *choice.artifact, device));
}

std::string row_of(const Choice& choice, const Device& device) {
  const char* what = choice.lent ? "tile of a plain product that was measured on " : "measured on ";
  return std::string(what) + gg_gpus[device.gpu].name + ": ";
}

// One launch of products, with those that upload its list; or one that moves rows around it.
struct Told {
  Choice choice;
  size_t groups, launches;
};

// What a call launches: products, and before and after a grouped one what it leaves to other kernels.
struct Launches {
  std::vector<Told> before, products, after;
  int64_t splits = 1;  // parts of each group's K
};

// Of the function, not of a Plan.
Launches launches_of(const ListProblem& problem, const Device& device) {
  std::vector<Told> told;
  for (const Part& part : divide(problem, device, Use::once)) {
    told.push_back({part.choice, part.problem.groups.size(), launches(part.problem, part.choice, device)});
  }
  return {{}, told, {}, 1};
}

Told told(const MemoryChoice& choice, const GroupedProblem& problem, const Device& device) {
  return {{choice.artifact, image_for(*choice.artifact, device), choice.predicted_us, false, 0},
          static_cast<size_t>(problem.groups),
          1};
}

// With memory between the parts at addresses that nobody has: explain allocates nothing.
Parts imagined_parts(const GroupedProblem& problem, const Device& device, const PartsOptions& options) {
  const Division division = options.division ? *options.division : best_division(problem, options, device);
  return parts_of(problem, division, imagined_memory(), options);
}

Launches launches_of(const GroupedProblem& problem, const Device& device, const PartsOptions& options = {}) {
  const Parts parts = imagined_parts(problem, device, options);
  Launches found;
  const auto tell = [&](const auto& part) { return told(choice_of(part, device), problem, device); };
  each_before(parts, [&](const auto& part) { found.before.push_back(tell(part)); });
  found.products.push_back({select(parts.product, device), static_cast<size_t>(problem.groups), 1});
  each_after(parts, [&](const auto& part) { found.after.push_back(tell(part)); });
  found.splits = parts.product.part_count();
  return found;
}

std::string reason(const Problem& problem, const std::vector<Told>& parts, const Device& device) {
  const Choice& first = parts[0].choice;
  if (first.tuned && parts.size() == 1) return row_of(first, device) + problem.row_words();
  const std::string model = basis(*first.artifact, device) + ": ";
  if (parts.size() == 1) return model + problem.model_words();
  std::string odd;
  for (const Told& part : parts) odd += odd.empty() ? problem.culprit(*part.choice.artifact) : "";
  return model + "two launches have the least predicted time, as " + odd;
}

// How a grouped product is divided, if it is.
std::string words_of_parts(const Launches& found) {
  if (found.before.empty() && found.after.empty()) return "";
  std::string text = "; by parts: ";
  for (const Told& part : found.before) text += std::string(gg_form_names[part.choice.artifact->form]) + ", ";
  text += found.splits > 1 ? "product in " + std::to_string(found.splits) + " parts of each group's K" : "product";
  for (const Told& part : found.after) text += std::string(", ") + gg_form_names[part.choice.artifact->form];
  return text;
}

py::list candidates(const Problem& problem, const Device& device) {
  py::list found;
  for (const Considered& one : considered(problem, device)) {
    py::dict candidate;
    candidate["variant"] = one.artifact->name;
    candidate["predicted_us"] = one.ruled_out.empty() ? py::cast(one.predicted_us) : py::none();
    candidate["upload_us"] = one.ruled_out.empty() ? py::cast(one.upload_us) : py::none();
    candidate["ruled_out"] = one.ruled_out.empty() ? py::none() : py::object(py::str(one.ruled_out));
    found.append(candidate);
  }
  return found;
}

// Kernels for the part that is a product.
py::list candidates(const GroupedProblem& problem, const Device& device, const PartsOptions& options = {}) {
  return candidates(static_cast<const Problem&>(imagined_parts(problem, device, options).product), device);
}

// Each part's facts, and their sums.
void add_parts(py::dict& result, const Launches& found) {
  std::vector<Told> parts = found.before;
  parts.insert(parts.end(), found.products.begin(), found.products.end());
  parts.insert(parts.end(), found.after.begin(), found.after.end());
  double predicted_us = 0, upload_us = 0;
  size_t launches = 0;
  py::list told;
  for (const auto& [choice, groups, part_launches] : parts) {
    predicted_us += choice.predicted_us;
    upload_us += choice.upload_us;
    launches += part_launches;
    told.append(py::dict(py::arg("variant") = choice.artifact->name, py::arg("groups") = groups,
                         py::arg("predicted_us") = choice.predicted_us, py::arg("upload_us") = choice.upload_us,
                         py::arg("launches") = part_launches));
  }
  result["predicted_us"] = predicted_us;
  result["upload_us"] = upload_us;
  result["launches"] = launches;
  result["parts"] = told;
}

// `options`: none, or the PartsOptions of a grouped product.
template <typename Product, typename... Options>
py::dict explained(const Product& product, const Device& device, const Options&... options) {
  py::dict result;
  result["device"] = device.name;
  if (!product.has_outputs()) {
    result["variant"] = py::none();
    result["reason"] = "nothing to compute: no output element";
    result["predicted_us"] = 0.0;
    result["upload_us"] = 0.0;
    result["from_ptx"] = false;
    result["launches"] = 0;
    result["parts"] = py::list();
    result["candidates"] = py::list();
    return result;
  }
  const Launches found = launches_of(product, device, options...);
  const Choice& first = found.products[0].choice;
  result["variant"] = first.artifact->name;
  result["reason"] = reason(product, found.products, device) + words_of_parts(found);
  result["from_ptx"] = first.image == ImageKind::ptx;
  add_parts(result, found);
  result["candidates"] = candidates(product, device, options...);
  return result;
}

template <typename Product>
py::dict explained_on(const Product& product, py::handle described, DeviceType type, int ordinal) {
  if (!described.is_none()) return explained(product, described_device(described, "explain"));
  if (type != DeviceType::cuda) {
    throw ValueError(
        "explain: the matrices are on the CPU, which takes the reference path; pass device= to ask about a GPU");
  }
  if (product.has_outputs()) return explained(product, device(ordinal));
  Device none{};
  none.name = "any device";
  return explained(product, none);
}

}  // namespace

py::dict explain(const ListArguments& arguments, py::handle device) {
  CheckedList list = check_list(arguments);
  imagine_missing_outputs(list);
  const ListProblem problem = problem_of(list);
  const DeviceType type = list.size() == 0 ? DeviceType::cuda : list.device_type;
  return explained_on(problem, device, type, list.device);
}

py::dict explain(const GroupedArguments& arguments, py::handle device) {
  const CheckedGrouped checked = check_grouped(arguments);
  return explained_on(checked.problem, device, checked.device_type, checked.device);
}

py::dict explain_product(const GroupedProblem& product, const PartsOptions& options, const Device& device) {
  return explained(product, device, options);
}

}  // namespace gg
