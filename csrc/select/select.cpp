#include "select/select.hpp"

#include <algorithm>
#include <array>
#include <iterator>

#include "driver/error.hpp"
#include "select/catalog.hpp"
#include "select/cost.hpp"
#include "select/tuned.hpp"

namespace gg {
namespace {

// The guarantees that the artifact was compiled with and the matrices do not keep; null if they keep all.
const char* broken_guarantee(const gg_artifact& artifact, const Problem& problem) {
  if (const char* why = problem.ruled_out(artifact)) return why;
  const Guarantees& guarantees = problem.guarantees;
  if (artifact.layout == GG_STRIDED) return nullptr;
  const auto bit = static_cast<LayoutMask>(1u << artifact.layout);
  if (!(guarantees.unit_stride & bit)) return "the unit strides of its layout are not those of the tensors";
  if (artifact.alignment < 16) return nullptr;
  if (artifact.addressing == GG_POINTERS) {
    if (guarantees.vectorized & bit) return nullptr;
    return "it needs pointers on 16 bytes, and leading strides and contiguous extents that are multiples of 16 bytes";
  }
  if (guarantees.described & bit) return nullptr;
  return "TMA needs pointers on 16 bytes, positive leading strides and rows of outputs that are multiples of 16 bytes, "
         "K > 0, dimensions of at most 2^31 - 256, and of ragged products at most 2^30 rows and row strides below 2^33";
}

const char* form_words(gg_form form) {
  if (form == GG_LIST) return "it is for lists of matrices";
  return form == GG_GROUPED ? "it is for grouped products" : "it multiplies nothing";
}

const char* extents_words(gg_extents extents) {
  constexpr const char* words[] = {
      "it is for sizes from the host", "it is for groups of rows that the device knows the ends of",
      "it is for shares of K that the device knows the ends of", "it is for matrices of which the device counts rows"};
  static_assert(std::size(words) == GG_EXTENTS_COUNT);
  return words[extents];
}

const char* source_words(gg_source source) {
  constexpr const char* words[] = {"it takes rows of A as they lie", "it takes rows of A by an index",
                                   "it takes rows of A as they lie or by an index", "it takes rows of B by an index"};
  static_assert(std::size(words) == GG_SOURCE_COUNT);
  return words[source];
}

std::string why_not(const gg_artifact& artifact, const Problem& problem, const Device& device) {
  if (artifact.form != problem.form()) return form_words(artifact.form);
  if (artifact.extents != problem.extents) return extents_words(artifact.extents);
  if (artifact.epilogue != problem.epilogue) {
    return std::string("its epilogue is ") + gg_epilogue_names[artifact.epilogue] + ", " +
           gg_epilogue_names[problem.epilogue] + " is needed";
  }
  if (!takes(artifact, problem.source)) {
    return source_words(artifact.source);
  }
  const gg_scaling scaling = problem.signature().scaling;
  if (artifact.dtype == problem.dtype && artifact.scaling != scaling) {
    return std::string("its scales are by ") + gg_scaling_names[artifact.scaling] + ", by " +
           gg_scaling_names[scaling] + " is needed";
  }
  Signature served = signature_of(artifact);
  served.source = problem.source;
  if (!(served == problem.signature())) {
    const auto types = [](gg_dtype in, gg_dtype out) {
      return std::string(gg_dtype_names[in]) + " to " + gg_dtype_names[out];
    };
    return "it is for " + types(artifact.dtype, artifact.out_dtype) + ", " + types(problem.dtype, problem.out_dtype) +
           " is needed";
  }
  if (image_for(artifact, device) == ImageKind::none) {
    return "sm_" + std::to_string(artifact.sm) + " code does not run on this GPU";
  }
  if (!enough_shared_memory(artifact, device)) {
    return "it needs " + std::to_string(artifact.shared_bytes) + " bytes of shared memory and a block may have " +
           std::to_string(device.shared_bytes_per_block);
  }
  const char* broken = broken_guarantee(artifact, problem);
  if (!broken) return "";
  const std::string culprit = problem.culprit(artifact);
  return culprit.empty() ? broken : culprit + "; " + broken;
}

// What uploads cost a call with a variant. That depends on the kind of its records alone: each kind is looked at once.
class UploadCost {
 public:
  UploadCost(const Problem& problem, const Device& device, Use use) : problem_(problem), device_(device), use_(use) {}

  double operator()(const gg_artifact& artifact) {
    if (use_ == Use::repeated) return 0;
    std::optional<double>& us = us_[artifact.addressing];
    if (!us)
      us = extra_launch_us * static_cast<double>(problem_.expected_upload_count(artifact, upload_capacity(device_)));
    return *us;
  }

 private:
  const Problem& problem_;
  const Device& device_;
  Use use_;
  std::array<std::optional<double>, GG_ADDRESSING_COUNT> us_;
};

// The choice of a row that was measured on this very GPU, in any layout that the matrices have; no artifact where there
// is none that takes them.
Choice measured(const Problem& problem, const Device& device) {
  const std::optional<uint64_t> key = device.gpu < 0 ? std::nullopt : problem.table_key();
  if (!key) return {};
  for (int layout = GG_NN; layout <= GG_TT; layout++) {
    if (!(problem.guarantees.unit_stride >> layout & 1)) continue;
    const gg_tuned_row* row = tuned_for(device.gpu, problem.dtype, static_cast<gg_layout>(layout), *key);
    if (!row) continue;
    const gg_artifact& won = gg_artifacts[row->artifact];
    if (why_not(won, problem, device).empty()) {
      return {&won, image_for(won, device), predict_us(won, problem, device), true, 0, row->lent != 0};
    }
  }
  return {};
}

std::string on(const Device& device) { return " on " + device.name + " (sm_" + std::to_string(device.sm) + ")"; }

[[noreturn]] void no_fp8(const Problem& problem, const Catalog& catalog, const Device& device) {
  const std::string why =
      device.sm < 90 ? "fp8 needs a GPU of compute capability 9.0"
                     : "its kernels come from sm_" + std::to_string(catalog.architecture.sm) +
                           (catalog.architecture.from_ptx ? " PTX" : " cubins") +
                           ", which has no fp8 in this wheel; those of compute capability 9.0 do not run on it";
  throw UnsupportedError(std::string("no embedded kernel multiplies ") + full_name(problem.dtype) + on(device) + ": " +
                         why + "; convert the inputs to bfloat16, or use a GPU of compute capability 9.0");
}

// No artifact has the problem's signature.
[[noreturn]] void no_kernel(const Problem& problem, const Catalog& catalog, const Device& device) {
  if (is_fp8(problem.dtype) && problem.epilogue == GG_LINEAR) no_fp8(problem, catalog, device);
  throw UnsupportedError(std::string(problem.function()) + ": no embedded sm_" +
                         std::to_string(catalog.architecture.sm) + " kernel has the epilogue " +
                         gg_epilogue_names[problem.epilogue] + " for " + full_name(problem.dtype) + " inputs and " +
                         full_name(problem.out_dtype) + " outputs" + on(device) +
                         "; gg_runtime.kernels() lists what is embedded");
}

// No variant counts as faster than `least_us`.
Choice cheapest(const Problem& problem, const Device& device, UploadCost& upload_us, double least_us = 0) {
  const Catalog& available = catalog(device);
  const Catalog::Variants& variants = available.of(problem.signature());
  if (variants.empty()) no_kernel(problem, available, device);
  Choice best{};
  double best_us = 0;  // with uploads
  for (const gg_artifact* artifact : variants) {
    if (!enough_shared_memory(*artifact, device) || broken_guarantee(*artifact, problem)) continue;
    const double kernel_us = predict_us(*artifact, problem, device), charged_us = upload_us(*artifact);
    const double us = std::max(kernel_us, least_us) + charged_us;
    const bool equal = us == best_us && kernel_us < best.predicted_us;
    if (best.artifact && us >= best_us && !equal) continue;
    best = {artifact, ImageKind::none, kernel_us, false, charged_us};
    best_us = us;
  }
  if (best.artifact) {
    best.image = image_for(*best.artifact, device);
    return best;
  }
  throw UnsupportedError("no embedded sm_" + std::to_string(available.architecture.sm) + " variant takes this product" +
                         on(device) + " with " + std::to_string(device.shared_bytes_per_block) +
                         " bytes of shared memory a block; gg_runtime.kernels() lists what is embedded");
}

struct CachedChoice {
  ChoiceKey key;
  int device;
  Choice choice;  // no artifact: nothing was asked yet
};

// Where this thread keeps the choice of problems with the key.
CachedChoice& place_for(const ChoiceKey& key) {
  thread_local std::array<CachedChoice, 256> choices;
  return choices[hash_of(key) % choices.size()];
}

bool is_kept(const CachedChoice& cached, const ChoiceKey& key, const Device& device) {
  return cached.choice.artifact && cached.device == device.ordinal && cached.key == key;
}

}  // namespace

Choice select(const Problem& problem, const Device& device, Use use) {
  UploadCost upload_us(problem, device, use);
  Choice won = measured(problem, device);
  if (!won.artifact) return cheapest(problem, device, upload_us);
  won.upload_us = upload_us(*won.artifact);
  if (won.upload_us == 0) return won;
  const Choice other = cheapest(problem, device, upload_us, won.predicted_us);
  const double us = std::max(other.predicted_us, won.predicted_us) + other.upload_us;
  return us < won.predicted_us + won.upload_us ? other : won;
}

std::optional<Choice> select_if_taken(const Problem& problem, const Device& device) {
  const Catalog::Variants& variants = catalog(device).of(problem.signature());
  const bool taken = std::any_of(variants.begin(), variants.end(), [&](const gg_artifact* one) {
    return enough_shared_memory(*one, device) && !broken_guarantee(*one, problem);
  });
  return taken ? std::optional<Choice>(select(problem, device)) : std::nullopt;
}

Choice cached_choice(const Problem& problem, const Device& device) {
  const std::optional<ChoiceKey> key = problem.choice_key();
  if (!key || device.ordinal < 0) return select(problem, device);  // one that was only described
  CachedChoice& cached = place_for(*key);
  if (!is_kept(cached, *key, device)) cached = {*key, device.ordinal, select(problem, device)};
  return cached.choice;
}

std::optional<Choice> cached_choice_if_taken(const Problem& problem, const Device& device) {
  const std::optional<ChoiceKey> key = problem.choice_key();
  if (!key || device.ordinal < 0) return select_if_taken(problem, device);
  CachedChoice& cached = place_for(*key);
  if (is_kept(cached, *key, device)) return cached.choice;
  const std::optional<Choice> choice = select_if_taken(problem, device);
  if (choice) cached = {*key, device.ordinal, *choice};
  return choice;
}

Choice forced(const std::string& variant, const Problem& problem, const Device& device, const char* function) {
  const gg_artifact* artifact = find_artifact(variant);
  const auto refused = [&](const std::string& why) { return ValueError(std::string(function) + ": " + why); };
  if (!artifact) throw refused("no variant is called " + variant + "; gg_runtime.kernels() lists them");
  const std::string why = why_not(*artifact, problem, device);
  if (!why.empty()) throw refused("variant " + variant + " cannot take this product: " + why);
  return {artifact, image_for(*artifact, device), predict_us(*artifact, problem, device), false, 0};
}

std::vector<Considered> considered(const Problem& problem, const Device& device) {
  UploadCost upload_us(problem, device, Use::once);
  std::vector<Considered> all;
  for (const gg_artifact* artifact : catalog(device).of(problem.signature())) {
    std::string why = why_not(*artifact, problem, device);
    const double us = why.empty() ? predict_us(*artifact, problem, device) : 0;
    all.push_back({artifact, us, why.empty() ? upload_us(*artifact) : 0, std::move(why)});
  }
  std::stable_sort(all.begin(), all.end(), [](const Considered& x, const Considered& y) {
    if (x.ruled_out.empty() != y.ruled_out.empty()) return x.ruled_out.empty();
    return x.predicted_us + x.upload_us < y.predicted_us + y.upload_us;
  });
  return all;
}

}  // namespace gg
