#include "launch/product_parts.hpp"

#include "arrays/dtype.hpp"
#include "launch/plan_memory.hpp"

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

// A gated product has two columns for one of the output, and no room for them but in a pre-activation.
bool needs_sums(const GroupedProblem& p) { return p.activation.gated() && p.activation.kept == 0; }

GatherRows gather_of(const GroupedProblem& p, const PartsMemory& memory, const PartsOptions& options) {
  GatherRows gather;
  gather.source = p.a, gather.source_row = p.a_row, gather.source_col = p.a_col, gather.source_rows = p.index.a_rows;
  gather.index = p.index.data, gather.index_bytes = p.index.bytes;
  gather.out = memory.gathered, gather.out_row = padded_row(p.k, p.dtype);
  gather.rows = p.m, gather.columns = p.k, gather.dtype = p.dtype;
  if (options.ends_rise) gather.ends = p.ragged, gather.groups = p.groups;
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
  if (options.ends_rise) activate.ends = p.ragged, activate.groups = p.groups;
  return activate;
}

// What the options have not given is allocated, and then owned by `owners`.
PartsMemory memory_for(const GroupedProblem& problem, const PartsOptions& options, const Framework& framework,
                       py::handle like, std::vector<py::object>& owners) {
  if (options.memory) return *options.memory;
  const PartsBytes bytes = parts_bytes(problem);
  PartsMemory memory;
  if (bytes.gathered > 0) owners.push_back(framework.scratch(like, bytes.gathered, &memory.gathered));
  if (bytes.sums > 0) owners.push_back(framework.scratch(like, bytes.sums, &memory.sums));
  return memory;
}

}  // namespace

PartsBytes parts_bytes(const GroupedProblem& p) {
  return {gathers(p) ? bytes_of(p.m, p.k, p.dtype) : 0, needs_sums(p) ? bytes_of(p.m, p.n, p.out_dtype) : 0};
}

Parts parts_of(const GroupedProblem& problem, const PartsMemory& memory, const PartsOptions& options) {
  Parts parts{{}, problem, {}};
  GroupedProblem& product = parts.product;
  product.activation = {}, product.index = {};
  if (gathers(problem)) {
    parts.gather = gather_of(problem, memory, options);
    product.a = memory.gathered, product.a_row = parts.gather->out_row, product.a_col = 1;
  }
  set_sums(product, problem.activation, memory);
  product.complete();
  if (has_activation(problem)) parts.activate = activate_of(problem, product, options);
  return parts;
}

ProductParts::ProductParts(const GroupedProblem& problem, const PartsOptions& options, const std::string& variant,
                           Use use, const char* function, const Device& device, const Framework& framework,
                           py::handle like, CUstream stream) {
  const Parts parts = parts_of(problem, memory_for(problem, options, framework, like, memory_), options);
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
