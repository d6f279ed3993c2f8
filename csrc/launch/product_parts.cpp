#include "launch/product_parts.hpp"

#include "arrays/padded_rows.hpp"
#include "launch/plan_memory.hpp"
#include "launch/ragged_k_parts.hpp"

namespace py = pybind11;

namespace gg {
namespace {

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
    if (product.has_output_stack()) product.c_group = product.m * product.c_row;
  }
}

// Rows of C, of all its matrices.
int64_t output_rows(const GroupedProblem& p) { return p.has_output_stack() ? p.groups * p.m : p.m; }

Activate activate_of(const GroupedProblem& p, const GroupedProblem& sums, const PartsOptions& options) {
  Activate activate;
  activate.z = sums.c, activate.z_row = sums.c_row, activate.z_col = sums.c_col;
  activate.out = p.c, activate.out_row = p.c_row, activate.out_col = p.c_col;
  activate.rows = output_rows(p), activate.columns = p.output_columns(), activate.dtype = p.out_dtype;
  activate.activation = p.activation;
  if (options.ends_rise && p.groups > 0) activate.ends = p.ragged, activate.groups = p.groups;
  if (p.has_output_stack()) {
    activate.group_rows = p.m, activate.z_group = sums.c_group, activate.out_group = p.c_group;
    activate.counts = p.ragged;
  }
  return activate;
}

// What the options have not given is allocated, and then owned by `owners`.
PartsMemory memory_for(const GroupedProblem& problem, const Division& division, const PartsOptions& options,
                       const Framework& framework, py::handle like, std::vector<py::object>& owners) {
  if (options.memory) return *options.memory;
  const PartsBytes bytes = parts_bytes(problem, division);
  PartsMemory memory;
  if (bytes.gathered > 0) owners.push_back(framework.scratch(like, bytes.gathered, &memory.gathered));
  if (bytes.gathered_b > 0) owners.push_back(framework.scratch(like, bytes.gathered_b, &memory.gathered_b));
  if (bytes.sums > 0) owners.push_back(framework.scratch(like, bytes.sums, &memory.sums));
  return memory;
}

}  // namespace

Division all_parts(const GroupedProblem& p) {
  if (p.extents == GG_K_ENDS) return all_parts_of_k(p);
  // What the product's kernel quantizes it has to activate.
  return {p.has_index(), p.has_activation() && p.scale_c == 0};
}

PartsMemory imagined_memory() { return {uint64_t{1} << 40, uint64_t{1} << 41, uint64_t{1} << 42}; }

PartsBytes parts_bytes(const GroupedProblem& p, const Division& division) {
  if (p.extents == GG_K_ENDS) return parts_bytes_of_k(p, division);
  // A gated product has two columns for one of the output, and no room for them but in a pre-activation.
  const bool needs_sums = division.activates && p.activation.gated() && p.activation.kept == 0;
  return {division.gathers ? bytes_of_rows(p.m, p.k, p.dtype) : 0,
          needs_sums ? bytes_of_rows(output_rows(p), p.n, p.out_dtype) : 0};
}

Parts parts_of(const GroupedProblem& problem, const Division& division, const PartsMemory& memory,
               const PartsOptions& options) {
  if (problem.extents == GG_K_ENDS) return parts_of_k(problem, division, memory);
  Parts parts{{}, {}, problem, {}, {}};
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
                           const char* function, const Device& device, const Framework& framework, py::handle like,
                           CUstream stream) {
  const Division division = options.division  ? *options.division
                            : variant.empty() ? best_division(problem, options, device)
                                              : division_for(problem, variant);
  const Parts parts =
      parts_of(problem, division, memory_for(problem, division, options, framework, like, memory_), options);
  choice_ = variant.empty() ? cached_choice(parts.product, device) : forced(variant, parts.product, device, function);
  each_before(parts, [&](const auto& part) { before_.push_back(prepared(part, function, device)); });
  product_ = std::make_unique<Launch>(parts.product, choice_, device, framework, like, stream);
  for (py::object& owner : product_->take_memory()) memory_.push_back(std::move(owner));
  each_after(parts, [&](const auto& part) { after_.push_back(prepared(part, function, device)); });
}

void ProductParts::run(CUstream stream) const {
  for (const RepeatedLaunch& launch : before_) launch.run(stream);
  product_->run(stream);
  for (const RepeatedLaunch& launch : after_) launch.run(stream);
}

std::vector<const gg_artifact*> ProductParts::artifacts() const {
  std::vector<const gg_artifact*> all;
  all.reserve(launches());
  for (const RepeatedLaunch& launch : before_) all.push_back(&launch.artifact());
  all.push_back(choice_.artifact);
  for (const RepeatedLaunch& launch : after_) all.push_back(&launch.artifact());
  return all;
}

void run_product(const GroupedProblem& problem, const PartsOptions& options, const std::string& variant,
                 const Device& device, const Framework& framework, py::handle like, CUstream stream) {
  ProductParts parts(problem, options, variant, "grouped_mm", device, framework, like, stream);
  keep_call_memory(parts.memory(), framework.pools_captures(), device, stream);
  launch_in_turn(device, framework, stream, [&] { parts.run(stream); });
}

}  // namespace gg
