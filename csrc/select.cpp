#include "select.hpp"

#include <algorithm>
#include <array>

#include "cost.hpp"
#include "dtype.hpp"
#include "error.hpp"
#include "list.hpp"
#include "odd_group.hpp"
#include "shelf.hpp"
#include "tuned.hpp"
#include "upload.hpp"

namespace gg {
namespace {

const Shelf::Variants& variants_for(const Problem& problem, const Shelf& shelf) {
  return shelf.lists[problem.dtype][problem.out_dtype];
}

const Shelf::Variants& variants_for(const Ragged& ragged, const Shelf& shelf) {
  return shelf.ragged[ragged.dtype][ragged.out_dtype];
}

gg_form form_of(const Problem&) { return GG_LIST; }
gg_form form_of(const Ragged&) { return GG_GROUPED; }

// The promises that the artifact was compiled with and the matrices do not keep; null if they keep all.
const char* broken_promise(const gg_artifact& artifact, const Masks& keeps) {
  if (artifact.layout == GG_STRIDED) return nullptr;
  const auto bit = static_cast<LayoutMask>(1u << artifact.layout);
  if (!(keeps.unit_stride & bit)) return "the unit strides of its layout are not those of the tensors";
  if (artifact.alignment < 16) return nullptr;
  if (artifact.addressing == GG_POINTERS) {
    if (keeps.vectorized & bit) return nullptr;
    return "it needs pointers on 16 bytes, and leading strides and contiguous extents that are multiples of 16 bytes";
  }
  if (keeps.described & bit) return nullptr;
  return "TMA needs pointers on 16 bytes, positive leading strides and rows of outputs that are multiples of 16 bytes, "
         "K > 0, dimensions of at most 2^31 - 256, and of ragged products at most 2^30 rows and row strides below 2^33";
}

// Which of a list's groups broke a promise: "B[17] has rows of 14 bytes; ".
std::string culprit(const Problem& problem, const gg_artifact& artifact) {
  const std::string found = odd_group(problem, artifact);
  return found.empty() ? found : found + "; ";
}

std::string culprit(const Ragged&, const gg_artifact&) { return ""; }

template <typename Product>
std::string why_not(const gg_artifact& artifact, const Product& product, const Device& device) {
  if (artifact.form == GG_MEMORY) return "it multiplies nothing";
  if (artifact.form != form_of(product)) {
    return artifact.form == GG_LIST ? "it is for lists of matrices" : "it is for ragged products";
  }
  if (artifact.dtype != product.dtype || artifact.out_dtype != product.out_dtype) return "it is for another dtype";
  if (image_for(artifact, device) == ImageKind::none) {
    return "sm_" + std::to_string(artifact.sm) + " code does not run on this GPU";
  }
  if (!enough_shared_memory(artifact, device)) {
    return "it needs " + std::to_string(artifact.shared_bytes) + " bytes of shared memory and a block may have " +
           std::to_string(device.shared_bytes_per_block);
  }
  const char* broken = broken_promise(artifact, product.keeps);
  return broken ? culprit(product, artifact) + broken : "";
}

// What uploads of a list cost a call with a variant. That depends on the kind of its records alone: each kind is looked
// at once.
class UploadCost {
 public:
  UploadCost(const Problem& problem, const Device& device, Use use) : problem_(problem), device_(device), use_(use) {}

  double operator()(const gg_artifact& artifact) {
    if (use_ == Use::repeated) return 0;
    double& us = us_[takes_descriptors(artifact)];
    if (us < 0) us = extra_launch_us * static_cast<double>(expected_upload_count(problem_, artifact, device_));
    return us;
  }

 private:
  const Problem& problem_;
  const Device& device_;
  Use use_;
  double us_[2] = {-1, -1};
};

// Ragged products have none.
double no_upload(const gg_artifact&) { return 0; }

// The choice of a row that was measured on this very GPU, in any layout that the matrices have; no artifact where there
// is none that takes them.
template <typename Product>
Choice measured(const Product& product, uint64_t key, const Device& device) {
  for (int layout = GG_NN; layout <= GG_TT; layout++) {
    if (!(product.keeps.unit_stride >> layout & 1)) continue;
    const gg_artifact* won = tuned_for(device.gpu, product.dtype, static_cast<gg_layout>(layout), key);
    if (won && why_not(*won, product, device).empty()) {
      return {won, image_for(*won, device), predict_us(*won, product, device), true, 0};
    }
  }
  return {};
}

std::string on(const Device& device) { return " on " + device.name + " (sm_" + std::to_string(device.sm) + ")"; }

[[noreturn]] void no_fp8(const Shelf& shelf, const Device& device) {
  const std::string why =
      device.sm < 90 ? "fp8 needs a GPU of compute capability 9.0"
                     : "its kernels come from sm_" + std::to_string(shelf.sm) + (shelf.from_ptx ? " PTX" : " cubins") +
                           ", which has no fp8 in this wheel; those of compute capability 9.0 do not run on it";
  throw UnsupportedError("no embedded kernel multiplies float8_e4m3fn" + on(device) + ": " + why +
                         "; convert the inputs to bfloat16, or use a GPU of compute capability 9.0");
}

// No variant counts as faster than `least_us`.
template <typename Product, typename Upload>
Choice cheapest(const Product& product, const Device& device, Upload&& upload_us, double least_us = 0) {
  const Shelf& available = shelf(device);
  const Shelf::Variants& variants = variants_for(product, available);
  if (variants.empty() && product.dtype == GG_E4M3) no_fp8(available, device);
  Choice best{};
  double best_us = 0;  // with uploads
  for (const gg_artifact* artifact : variants) {
    if (!enough_shared_memory(*artifact, device) || broken_promise(*artifact, product.keeps)) continue;
    const double kernel_us = predict_us(*artifact, product, device), charged_us = upload_us(*artifact);
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
  throw UnsupportedError("no embedded sm_" + std::to_string(available.sm) + " variant takes this product" + on(device) +
                         " with " + std::to_string(device.shared_bytes_per_block) +
                         " bytes of shared memory a block; gg_runtime.explain(...) lists each reason");
}

template <typename Product>
Choice named(const std::string& variant, const Product& product, const Device& device, const char* function) {
  const gg_artifact* artifact = find_artifact(variant);
  const auto refused = [&](const std::string& why) { return ValueError(std::string(function) + ": " + why); };
  if (!artifact) throw refused("no variant is called " + variant + "; gg_runtime.kernels() lists them");
  const std::string why = why_not(*artifact, product, device);
  if (!why.empty()) throw refused("variant " + variant + " cannot take this product: " + why);
  return {artifact, image_for(*artifact, device), predict_us(*artifact, product, device), false, 0};
}

template <typename Product, typename Upload>
std::vector<Considered> weighed(const Product& product, const Device& device, Upload&& upload_us) {
  std::vector<Considered> all;
  for (const gg_artifact* artifact : variants_for(product, shelf(device))) {
    std::string why = why_not(*artifact, product, device);
    const double us = why.empty() ? predict_us(*artifact, product, device) : 0;
    all.push_back({artifact, us, why.empty() ? upload_us(*artifact) : 0, std::move(why)});
  }
  std::stable_sort(all.begin(), all.end(), [](const Considered& x, const Considered& y) {
    if (x.ruled_out.empty() != y.ruled_out.empty()) return x.ruled_out.empty();
    return x.predicted_us + x.upload_us < y.predicted_us + y.upload_us;
  });
  return all;
}

// What a batch-invariant choice sees of the batch: a size at which tiles of every height have work.
Ragged sized_for_choice(const Ragged& ragged) {
  Ragged sized = ragged;
  if (ragged.batch_invariant) sized.groups = 64, sized.rows = 64 * 256;
  return sized;
}

// All that a choice depends on.
struct Question {
  int64_t rows, groups, columns, depth;
  int device;
  uint8_t dtype, out_dtype, batch_invariant, unit_stride, vectorized, described;

  bool operator==(const Question& other) const {
    return rows == other.rows && groups == other.groups && columns == other.columns && depth == other.depth &&
           device == other.device && dtype == other.dtype && out_dtype == other.out_dtype &&
           batch_invariant == other.batch_invariant && unit_stride == other.unit_stride &&
           vectorized == other.vectorized && described == other.described;
  }
};

struct Answer {
  Question question;
  Choice choice;  // no artifact: nothing was asked yet
};

}  // namespace

Choice select(const Problem& problem, const Device& device, Use use) {
  UploadCost upload_us(problem, device, use);
  Choice won = device.gpu < 0 ? Choice{} : measured(problem, shape_key(problem), device);
  if (!won.artifact) return cheapest(problem, device, upload_us);
  won.upload_us = upload_us(*won.artifact);
  if (won.upload_us == 0) return won;
  const Choice other = cheapest(problem, device, upload_us, won.predicted_us);
  const double us = std::max(other.predicted_us, won.predicted_us) + other.upload_us;
  return us < won.predicted_us + won.upload_us ? other : won;
}

Choice select(const Ragged& ragged, const Device& device) {
  // Rows of the tables are for a number of rows, on which no batch-invariant choice may depend.
  const bool has_rows = device.gpu >= 0 && !ragged.batch_invariant;
  const Choice choice = has_rows ? measured(ragged, layer_key(ragged), device) : Choice{};
  return choice.artifact ? choice : cheapest(sized_for_choice(ragged), device, no_upload);
}

Choice remembered(const Ragged& r, const Device& device) {
  thread_local std::array<Answer, 256> answers;
  const Question question{r.rows,
                          r.groups,
                          r.columns,
                          r.depth,
                          device.ordinal,
                          static_cast<uint8_t>(r.dtype),
                          static_cast<uint8_t>(r.out_dtype),
                          r.batch_invariant,
                          r.keeps.unit_stride,
                          r.keeps.vectorized,
                          r.keeps.described};
  Answer& answer = answers[size_key(r.rows, r.columns, r.depth) % answers.size()];
  if (!answer.choice.artifact || !(answer.question == question)) answer = {question, select(r, device)};
  return answer.choice;
}

Choice forced(const std::string& variant, const Problem& problem, const Device& device, const char* function) {
  return named(variant, problem, device, function);
}

Choice forced(const std::string& variant, const Ragged& ragged, const Device& device, const char* function) {
  return named(variant, ragged, device, function);
}

std::vector<Considered> considered(const Problem& problem, const Device& device, Use use) {
  return weighed(problem, device, UploadCost(problem, device, use));
}

std::vector<Considered> considered(const Ragged& ragged, const Device& device) {
  return weighed(sized_for_choice(ragged), device, no_upload);
}

}  // namespace gg
