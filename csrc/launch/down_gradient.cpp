#include "launch/down_gradient.hpp"

#include <array>

#include "arrays/dtype.hpp"
#include "arrays/padded_rows.hpp"
#include "driver/error.hpp"
#include "select/cost.hpp"

namespace py = pybind11;

namespace gg {
namespace {

// The product with all that follows it. C is h, or where nobody wants it dz, which is then written by its halves alone.
GroupedProblem fused_problem(GroupedProblem product, const GradientRows& gradient) {
  product.gradient = &gradient;
  product.epilogue = GG_GATED_GRADIENT;
  product.source = GG_SOURCE_INDEXED;
  product.skips_rest = true;
  product.c = gradient.h != 0 ? gradient.h : gradient.dz;
  product.c_row = gradient.h != 0 ? gradient.h_row : gradient.dz_row;
  product.c_col = gradient.h != 0 ? gradient.h_col : gradient.dz_col;
  product.complete();
  return product;
}

// Whether a kernel could do all of it, whatever the layouts: gate and up lie in halves without a limit, each row has a
// slot with a weight, and 32 bits count the sums of rows.
bool is_fusible(const GroupedProblem& product, const GradientRows& g) {
  constexpr int64_t columns_of_a_sum = 256, sums_limit = int64_t{1} << 31;
  if (ceil_div(product.n, columns_of_a_sum) * product.m >= sums_limit) return false;
  const Activation& activation = g.activation;
  return activation.kind == GG_ACTIVATION_SWIGLU && activation.order != GG_INTERLEAVED &&
         activation.limit == no_limit && g.weights != 0 && g.slot != 0 && product.index.data != 0 && product.k > 0 &&
         product.n > 0;
}

GroupedProblem product_into(GroupedProblem product, uint64_t dh) {
  product.c = dh, product.c_row = padded_row(product.n, product.out_dtype), product.c_col = 1;
  product.complete();
  return product;
}

// Of gate and up in z and dz, of dh and of h, read or written. Whether a caller wants h and the gradients of weights
// has no say: a backward of some gradients is to give the bits of one of all.
double bytes_through_activation(const GroupedProblem& product) {
  constexpr int columns = 6;
  return static_cast<double>(product.predicted_rows()) * static_cast<double>(product.n) * columns *
         element_bytes(product.out_dtype);
}

bool is_faster_fused(const GroupedProblem& product, const GroupedProblem& fused, const Device& device) {
  const std::optional<Choice> choice = select_if_taken(fused, device);
  if (!choice) return false;
  PartsOptions options;
  options.ends_rise = true;
  const GroupedProblem imagined = product_into(product, imagined_memory().gathered);
  const std::optional<double> parts_us =
      predicted_us(imagined, best_division(imagined, options, device), options, device);
  if (!parts_us) return true;
  const double sums_us = fused.n > choice->artifact->block_n ? moving_us(0, device) + extra_launch_us : 0;
  return choice->predicted_us + sums_us <
         *parts_us + moving_us(bytes_through_activation(product), device) + extra_launch_us;
}

// The same, kept by each thread for the next call of the same problem.
bool cached_is_faster(const GroupedProblem& product, const GroupedProblem& fused, const Device& device) {
  struct Cached {
    ChoiceKey key{};
    int64_t a_row = 0;
    int device = -1;
    bool fuses = false;
  };
  thread_local std::array<Cached, 16> answers;
  const std::optional<ChoiceKey> key = fused.choice_key();
  if (!key) return is_faster_fused(product, fused, device);
  Cached& cached = answers[hash_of(*key) % answers.size()];
  if (cached.device != device.ordinal || cached.key != *key || cached.a_row != product.a_row) {
    cached = {*key, product.a_row, device.ordinal, is_faster_fused(product, fused, device)};
  }
  return cached.fuses;
}

}  // namespace

DownGradient::DownGradient(const GroupedProblem& product, const GradientRows& gradient, Fusion fusion,
                           const Device& device, const Framework& framework, py::handle like, CUstream stream) {
  if (fusion != Fusion::never && is_fusible(product, gradient)) {
    const GroupedProblem fused = fused_problem(product, gradient);
    const bool wanted = fusion == Fusion::always ? select_if_taken(fused, device).has_value()
                                                 : cached_is_faster(product, fused, device);
    if (wanted) {
      make_fused(fused, gradient, device, framework, like, stream);
      return;
    }
  }
  if (fusion == Fusion::always) {
    throw UnsupportedError(
        "down_gradient: no one kernel does this on " + device.name +
        ": it takes swiglu without a limit, gate and up in halves, weights, all arrays on 16 bytes, and rows of "
        "`gradient` that are multiples of 16 bytes; leave `fused` out, and it is done by parts");
  }
  make_parts(product, gradient, device, framework, like, stream);
}

void DownGradient::make_fused(GroupedProblem fused, GradientRows gradient, const Device& device,
                              const Framework& framework, py::handle like, CUstream stream) {
  const Choice choice = cached_choice(fused, device);
  const int64_t tiles = ceil_div(fused.n, choice.artifact->block_n);
  if (tiles == 1) {
    gradient.row_sums = gradient.dweights;
  } else if (gradient.dweights != 0) {
    const auto bytes = static_cast<size_t>(tiles) * static_cast<size_t>(fused.m) * element_bytes(GG_FP32);
    memory_.push_back(framework.scratch(like, bytes, &gradient.row_sums));
    GradientRows sums = gradient;
    sums.scale = 1;  // the kernel has multiplied them
    after_.emplace(prepared_row_sums(sums, tiles, device));
  }
  fused.gradient = &gradient;
  fused_ = std::make_unique<Launch>(fused, choice, device, framework, like, stream);
  for (py::object& owner : fused_->take_memory()) memory_.push_back(std::move(owner));
}

void DownGradient::make_parts(const GroupedProblem& product, GradientRows gradient, const Device& device,
                              const Framework& framework, py::handle like, CUstream stream) {
  gradient.dh_row = padded_row(product.n, product.out_dtype), gradient.dh_col = 1;
  if (product.has_outputs()) {
    const size_t bytes = bytes_of_rows(product.m, product.n, product.out_dtype);
    memory_.push_back(framework.scratch(like, bytes, &gradient.dh));
    PartsOptions options;
    options.ends_rise = true;
    product_ = std::make_unique<ProductParts>(product_into(product, gradient.dh), options, "", "grouped_mm", device,
                                              framework, like, stream);
    for (py::object& owner : product_->take_memory()) memory_.push_back(std::move(owner));
  }
  after_.emplace(prepared(gradient, device));
}

void DownGradient::run(CUstream stream) const {
  if (fused_) fused_->run(stream);
  if (product_) product_->run(stream);
  if (after_) after_->run(stream);
}

}  // namespace gg
