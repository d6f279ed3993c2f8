#include "launch/product_parts.hpp"

#include <array>

#include "arrays/dtype.hpp"
#include "launch/plan_memory.hpp"
#include "select/catalog.hpp"
#include "select/cost.hpp"

namespace py = pybind11;

namespace gg {
namespace {

// A row of memory between the parts, in elements: on 16 bytes, which TMA needs.
int64_t padded_row(int64_t columns, gg_dtype dtype) {
  const int64_t step = 16 / element_bytes(dtype);
  return (columns + step - 1) / step * step;
}

size_t bytes_of(int64_t rows, int64_t columns, gg_dtype dtype) {
  return static_cast<size_t>(rows) * static_cast<size_t>(padded_row(columns, dtype)) *
         static_cast<size_t>(element_bytes(dtype));
}

bool has_activation(const GroupedProblem& p) { return p.activation.kind != GG_ACTIVATION_NONE; }

bool gathers(const GroupedProblem& p) { return p.index.data != 0 && p.k > 0; }

GatherRows gather_of(const GroupedProblem& p, const PartsMemory& memory, const PartsOptions& options) {
  GatherRows gather;
  gather.source = p.a, gather.source_row = p.a_row, gather.source_col = p.a_col, gather.source_rows = p.index.a_rows;
  gather.index = p.index.data, gather.index_bytes = p.index.bytes;
  gather.out = memory.gathered, gather.out_row = padded_row(p.k, p.dtype);
  gather.rows = p.m, gather.columns = p.k, gather.dtype = p.dtype;
  if (options.ends_rise && p.groups > 0) gather.ends = p.ragged, gather.groups = p.groups;
  gather.row_weights = options.row_weights, gather.weight_kind = options.weight_kind;
  gather.weight_index = options.weight_index;
  return gather;
}

// The product's own output: the pre-activation, memory between the parts, or the output.
void set_sums(GroupedProblem& product, const Activation& activation, const PartsMemory& memory) {
  if (activation.kept != 0) {
    product.c = activation.kept, product.c_row = activation.kept_row, product.c_col = 1;
  } else if (activation.gated()) {
    product.c = memory.sums, product.c_row = padded_row(product.n, product.out_dtype), product.c_col = 1;
  }
}

Activate activate_of(const GroupedProblem& p, const GroupedProblem& sums, const PartsOptions& options) {
  Activate activate;
  activate.z = sums.c, activate.z_row = sums.c_row, activate.z_col = sums.c_col;
  activate.out = p.c, activate.out_row = p.c_row, activate.out_col = p.c_col;
  activate.rows = p.m, activate.columns = p.output_columns(), activate.dtype = p.out_dtype;
  activate.kind = p.activation.kind, activate.order = p.activation.order;
  if (options.ends_rise && p.groups > 0) activate.ends = p.ragged, activate.groups = p.groups;
  return activate;
}

// What the options have not given is allocated, and then owned by `owners`.
PartsMemory memory_for(const GroupedProblem& problem, const Division& division, const PartsOptions& options,
                       const Framework& framework, py::handle like, std::vector<py::object>& owners) {
  if (options.memory) return *options.memory;
  const PartsBytes bytes = parts_bytes(problem, division);
  PartsMemory memory;
  if (bytes.gathered > 0) owners.push_back(framework.scratch(like, bytes.gathered, &memory.gathered));
  if (bytes.sums > 0) owners.push_back(framework.scratch(like, bytes.sums, &memory.sums));
  return memory;
}

// What a kernel that was named leaves to others.
Division division_for(const GroupedProblem& p, const std::string& variant) {
  const gg_artifact* artifact = find_artifact(variant);
  if (!artifact) return all_parts(p);
  return {gathers(p) && artifact->source == GG_SOURCE_ROWS, has_activation(p) && artifact->epilogue == GG_LINEAR};
}

// Of the launches of a division; none where no kernel takes its product.
std::optional<double> predicted_us(const GroupedProblem& problem, const Division& division, const PartsOptions& options,
                                   const Device& device) {
  // Addresses of memory that nobody has yet, aligned as it will be.
  Parts parts = parts_of(problem, division, {uint64_t{1} << 40, uint64_t{1} << 41}, options);
  if (parts.gather) parts.gather->rows = problem.predicted_rows();
  if (parts.activate) parts.activate->rows = problem.predicted_rows();
  const std::optional<Choice> choice = select_if_taken(parts.product, device, Use::once);
  if (!choice) return std::nullopt;
  double us = choice->predicted_us;
  if (parts.gather) us += choice_of(*parts.gather, device).predicted_us + extra_launch_us;
  if (parts.activate) us += choice_of(*parts.activate, device).predicted_us + extra_launch_us;
  return us;
}

// All that a division depends on, besides the device and whether rows have weights: what guarantees are worked out
// from.
using DivisionKey = std::array<uint64_t, 16>;

DivisionKey key_of(const GroupedProblem& p) {
  const auto word = [](auto value) { return static_cast<uint64_t>(value); };
  const uint64_t aligned = (p.a & 15) << 12 | (p.b & 15) << 8 | (p.c & 15) << 4 | (p.activation.kept & 15);
  const uint64_t kinds = word(p.dtype) << 24 | word(p.out_dtype) << 16 | word(p.activation.order) << 8 |
                         word(p.activation.kept != 0) << 4 | word(p.activation.fusible()) << 3 |
                         word(has_activation(p)) << 2 | word(p.index.data != 0) << 1 | word(p.batch_invariant);
  return {word(p.m),
          word(p.groups),
          word(p.n),
          word(p.k),
          kinds,
          aligned,
          word(p.a_row),
          word(p.a_col),
          word(p.b_group),
          word(p.b_row),
          word(p.b_col),
          word(p.c_row),
          word(p.c_col),
          word(p.activation.kept_row),
          word(p.index.a_rows),
          word(p.extents)};
}

Division least_time(const GroupedProblem& problem, const PartsOptions& options, const Device& device) {
  const Division all = all_parts(problem);
  Division best = all;
  std::optional<double> best_us = predicted_us(problem, all, options, device);
  const auto consider = [&](const Division& other) {
    const std::optional<double> us = predicted_us(problem, other, options, device);
    if (us && (!best_us || *us < *best_us)) best = other, best_us = us;
  };
  const bool may_index = all.gathers && options.row_weights == 0;
  if (problem.activation.fusible()) consider({all.gathers, false});
  if (may_index) consider({false, all.activates});
  if (may_index && problem.activation.fusible()) consider({false, false});
  return best;
}

}  // namespace

Division best_division(const GroupedProblem& problem, const PartsOptions& options, const Device& device) {
  struct Cached {
    DivisionKey key{};
    int device = -1;
    bool weighted = false;
    Division division;
  };
  thread_local std::array<Cached, 64> divisions;
  if (!gathers(problem) && !problem.activation.fusible()) return all_parts(problem);
  if (device.ordinal < 0) return least_time(problem, options, device);  // one that was only described
  const DivisionKey key = key_of(problem);
  uint64_t mixed = 0;
  for (const uint64_t word : key) mixed = (mixed ^ word) * 0x9e3779b97f4a7c15ull;
  Cached& cached = divisions[(mixed >> 32) % divisions.size()];
  const bool weighted = options.row_weights != 0;
  if (cached.device != device.ordinal || cached.key != key || cached.weighted != weighted) {
    cached = {key, device.ordinal, weighted, least_time(problem, options, device)};
  }
  return cached.division;
}

Division all_parts(const GroupedProblem& p) { return {gathers(p), has_activation(p)}; }

PartsBytes parts_bytes(const GroupedProblem& p, const Division& division) {
  // A gated product has two columns for one of the output, and no room for them but in a pre-activation.
  const bool needs_sums = division.activates && p.activation.gated() && p.activation.kept == 0;
  return {division.gathers ? bytes_of(p.m, p.k, p.dtype) : 0, needs_sums ? bytes_of(p.m, p.n, p.out_dtype) : 0};
}

Parts parts_of(const GroupedProblem& problem, const Division& division, const PartsMemory& memory,
               const PartsOptions& options) {
  Parts parts{{}, problem, {}};
  GroupedProblem& product = parts.product;
  if (division.gathers) {
    parts.gather = gather_of(problem, memory, options);
    product.index = {};
    product.a = memory.gathered, product.a_row = parts.gather->out_row, product.a_col = 1;
  } else if (problem.k == 0) {
    product.index = {};
  }
  if (division.activates) {
    product.activation = {};
    set_sums(product, problem.activation, memory);
  }
  product.skips_rest = options.ends_rise;
  product = product.fused();
  if (division.activates) parts.activate = activate_of(problem, product, options);
  return parts;
}

ProductParts::ProductParts(const GroupedProblem& problem, const PartsOptions& options, const std::string& variant,
                           Use use, const char* function, const Device& device, const Framework& framework,
                           py::handle like, CUstream stream) {
  const Division division = variant.empty() ? best_division(problem, options, device) : division_for(problem, variant);
  const Parts parts =
      parts_of(problem, division, memory_for(problem, division, options, framework, like, memory_), options);
  if (!variant.empty()) choice_ = forced(variant, parts.product, device, function);
  else if (use == Use::once) choice_ = cached_choice(parts.product, device, use);
  else choice_ = select(parts.product, device, use);
  if (parts.gather) gather_ = prepared(*parts.gather, device, framework);
  product_ = std::make_unique<Launch>(parts.product, choice_, device, framework, like, stream);
  for (py::object& owner : product_->take_memory()) memory_.push_back(std::move(owner));
  if (parts.activate) activate_ = prepared(*parts.activate, device, framework);
}

void ProductParts::run(CUstream stream) const {
  if (gather_) gather_->run(stream);
  product_->run(stream);
  if (activate_) activate_->run(stream);
}

std::vector<const gg_artifact*> ProductParts::artifacts() const {
  std::vector<const gg_artifact*> all;
  if (gather_) all.push_back(&gather_->artifact());
  all.push_back(choice_.artifact);
  if (activate_) all.push_back(&activate_->artifact());
  return all;
}

void run_product(const GroupedProblem& problem, const PartsOptions& options, const std::string& variant,
                 const Device& device, const Framework& framework, py::handle like, CUstream stream) {
  ProductParts parts(problem, options, variant, Use::once, "grouped_mm", device, framework, like, stream);
  parts.run(stream);
  keep_call_memory(parts.take_memory(), framework.pools_captures(), device, stream);
}

}  // namespace gg
