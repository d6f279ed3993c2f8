#include "launch/down_gradient.hpp"

#include <array>

#include "arrays/dtype.hpp"
#include "driver/error.hpp"
#include "launch/padded_rows.hpp"
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

// Whether a kernel could do all of it, whatever the layouts: gate and up lie in halves, it has no erf, and each row has
// a slot with a weight.
bool is_fusible(const GroupedProblem& product, const GradientRows& g) {
  const Activation activation{g.kind, g.order, g.z};
  return activation.fusible() && g.weights != 0 && g.slot != 0 && product.index.data != 0 && product.k > 0 &&
         product.n > 0;
}

GroupedProblem product_into(GroupedProblem product, uint64_t dh) {
  product.c = dh, product.c_row = padded_row(product.n, product.out_dtype), product.c_col = 1;
  product.complete();
  return product;
}

// Bytes of z, dz, dh and h, read or written.
int64_t bytes_through_activation(const GroupedProblem& product, const GradientRows& g) {
  const int64_t halves = Activation{g.kind}.gated() ? 2 : 1;
  const int64_t passes = 2 * halves + 1 + (g.h != 0 ? 1 : 0);
  return product.predicted_rows() * product.n * passes * element_bytes(product.out_dtype);
}

bool is_faster_fused(const GroupedProblem& product, const GroupedProblem& fused, const GradientRows& gradient,
                     const Device& device) {
  const std::optional<Choice> choice = select_if_taken(fused, device, Use::once);
  if (!choice) return false;
  PartsOptions options;
  options.ends_rise = true;
  const GroupedProblem imagined = product_into(product, imagined_memory().gathered);
  const std::optional<double> parts_us =
      predicted_us(imagined, best_division(imagined, options, device), options, device);
  if (!parts_us) return true;
  const double sums_us = gradient.dweights != 0 ? moving_us(0, device) + extra_launch_us : 0;
  return choice->predicted_us + sums_us <
         *parts_us + moving_us(bytes_through_activation(product, gradient), device) + extra_launch_us;
}

// The same, kept by each thread for the next call of the same problem.
bool cached_is_faster(const GroupedProblem& product, const GroupedProblem& fused, const GradientRows& gradient,
                      const Device& device) {
  struct Cached {
    ChoiceKey key{};
    uint64_t strides[2] = {};
    int device = -1;
    bool fuses = false;
  };
  thread_local std::array<Cached, 16> answers;
  const std::optional<ChoiceKey> key = fused.choice_key();
  if (!key) return is_faster_fused(product, fused, gradient, device);
  const uint64_t strides[2] = {static_cast<uint64_t>(product.a_row),
                               static_cast<uint64_t>(gradient.h != 0) << 1 | (gradient.dweights != 0)};
  uint64_t mixed = 0;
  for (const uint64_t word : *key) mixed = (mixed ^ word) * 0x9e3779b97f4a7c15ull;
  Cached& cached = answers[(mixed >> 32) % answers.size()];
  const bool known = cached.device == device.ordinal && cached.key == *key && cached.strides[0] == strides[0] &&
                     cached.strides[1] == strides[1];
  if (!known) {
    cached = {*key, {strides[0], strides[1]}, device.ordinal, is_faster_fused(product, fused, gradient, device)};
  }
  return cached.fuses;
}

}  // namespace

DownGradient::DownGradient(const GroupedProblem& product, const GradientRows& gradient, Fusion fusion,
                           const Device& device, const Framework& framework, py::handle like, CUstream stream) {
  if (fusion != Fusion::never && is_fusible(product, gradient)) {
    const GroupedProblem fused = fused_problem(product, gradient);
    const bool wanted = fusion == Fusion::always ? select_if_taken(fused, device, Use::once).has_value()
                                                 : cached_is_faster(product, fused, gradient, device);
    if (wanted) {
      make_fused(fused, gradient, device, framework, like, stream);
      return;
    }
  }
  if (fusion == Fusion::always) {
    throw UnsupportedError(
        "down_gradient: no one kernel does this on " + device.name +
        ": it takes a gated activation but geglu, gate and up in halves, and all arrays on 16 bytes; "
        "leave `fused` out, and it is done by parts");
  }
  make_parts(product, gradient, device, framework, like, stream);
}

void DownGradient::make_fused(GroupedProblem fused, GradientRows gradient, const Device& device,
                              const Framework& framework, py::handle like, CUstream stream) {
  const Choice choice = cached_choice(fused, device, Use::once);
  const int64_t tiles = ceil_div(fused.n, choice.artifact->block_n);
  const auto bytes = static_cast<size_t>(tiles) * static_cast<size_t>(fused.m) * element_bytes(GG_FP32);
  memory_.push_back(framework.scratch(like, bytes, &gradient.row_sums));
  fused.gradient = &gradient;
  fused_ = std::make_unique<Launch>(fused, choice, device, framework, like, stream);
  for (py::object& owner : fused_->take_memory()) memory_.push_back(std::move(owner));
  if (gradient.dweights != 0) after_.emplace(prepared_row_sums(gradient, tiles, device));
}

void DownGradient::make_parts(GroupedProblem product, GradientRows gradient, const Device& device,
                              const Framework& framework, py::handle like, CUstream stream) {
  gradient.dh_row = padded_row(product.n, product.out_dtype), gradient.dh_col = 1;
  if (product.has_outputs()) {
    const size_t bytes = bytes_of_rows(product.m, product.n, product.out_dtype);
    memory_.push_back(framework.scratch(like, bytes, &gradient.dh));
    PartsOptions options;
    options.ends_rise = true;
    product_ = std::make_unique<ProductParts>(product_into(product, gradient.dh), options, "", Use::once, "grouped_mm",
                                              device, framework, like, stream);
  }
  after_.emplace(prepared(gradient, device));
}

void DownGradient::run(CUstream stream) const {
  if (fused_) fused_->run(stream);
  if (product_) product_->run(stream);
  if (after_) after_->run(stream);
}

std::vector<py::object> DownGradient::take_memory() {
  std::vector<py::object> all = std::exchange(memory_, {});
  if (!product_) return all;
  for (py::object& owner : product_->take_memory()) all.push_back(std::move(owner));
  return all;
}

}  // namespace gg
