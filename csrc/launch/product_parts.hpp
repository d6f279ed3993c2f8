// A grouped product with an index, an activation, factors or a long K: one kernel that does all of it, or parts.
//
//   part      reads                          writes
//   gather    A or B, the index              rows of A in the order of the product, or for a ragged K columns of A and
//                                            rows of B, in memory of its own
//   product   these rows or A, B, bias       sums, rounded: into the caller's pre-activation or output, or memory of
//                                            its own; for a ragged K float32 sums of parts of each group's K
//   activate  the sums                       the output
//   add_parts the float32 sums, the output   the output
//
// A part that has nothing to do is left out, and so is one that the product's kernel does. The sums are rounded between
// product and activation, which kernels that do both do not.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "forms/grouped_problem.hpp"
#include "launch/launch.hpp"
#include "launch/memory_kernels.hpp"
#include "select/select.hpp"

namespace gg {

// Which parts are launches of their own; for a ragged K into how many parts each group's K is cut. `gathers_b`: rows of
// B, for a ragged K.
struct Division {
  bool gathers = false, activates = false, adds = false;
  int64_t splits = 1;
  bool gathers_b = false;
};

// Memory that the parts hand over to each other, in bytes or as addresses on 16 bytes. 0 where none is needed.
struct PartsBytes {
  size_t gathered = 0, sums = 0, gathered_b = 0;
};
struct PartsMemory {
  uint64_t gathered = 0, sums = 0, gathered_b = 0;
};

// What else the parts may be told.
struct PartsOptions {
  // `ragged` rises and is not negative, as Routing.ends: rows behind the last end are neither gathered nor activated,
  // and what is in them afterwards is not said.
  bool ends_rise = false;
  // What best_division said, where the caller has asked it.
  std::optional<Division> division;
  // Where the memory is, if the caller has it; else the framework allocates it.
  std::optional<PartsMemory> memory;
  // As in GatherRows; they need an index.
  uint64_t row_weights = 0;
  int weight_kind = 0;
  uint64_t weight_index = 0;
};

// Which parts a product has. The addresses of memory between the parts are those of `memory`; `product` is complete.
struct Parts {
  std::optional<GatherRows> gather, gather_b;
  GroupedProblem product;
  std::optional<Activate> activate;
  std::optional<AddParts> add;
};

// Calls `take` with each part before the product, and with each after it, in the order of the launches.
template <typename Take>
void each_before(const Parts& parts, Take take) {
  if (parts.gather) take(*parts.gather);
  if (parts.gather_b) take(*parts.gather_b);
}
template <typename Take>
void each_after(const Parts& parts, Take take) {
  if (parts.activate) take(*parts.activate);
  if (parts.add) take(*parts.add);
}

// Whether a product is one launch of a kernel without an index or an activation, in one piece.
inline bool is_plain(const GroupedProblem& p) {
  return p.activation.kind == GG_ACTIVATION_NONE && p.index.data == 0 && p.extents != GG_K_ENDS;
}

// All that there is to do, each by itself: what takes most memory, and every product.
Division all_parts(const GroupedProblem& problem);

// That of the divisions whose kernels take the product on the device which is predicted to take the least time. The
// same for all that have the same N, K, dtypes, strides and alignment where they are batch-invariant.
Division best_division(const GroupedProblem& problem, const PartsOptions& options, const Device& device);

// Predicted for the launches of a division; none where no kernel takes its product.
std::optional<double> predicted_us(const GroupedProblem& problem, const Division& division, const PartsOptions& options,
                                   const Device& device);

// What a kernel that was named leaves to others.
Division division_for(const GroupedProblem& problem, const std::string& variant);

PartsBytes parts_bytes(const GroupedProblem& problem, const Division& division);
Parts parts_of(const GroupedProblem& problem, const Division& division, const PartsMemory& memory,
               const PartsOptions& options = {});

// Memory at addresses that nobody has, aligned as it will be: for predictions.
PartsMemory imagined_memory();

// The launches of a product that has outputs, ready to be run. `variant` names the product's kernel, or is empty.
class ProductParts {
 public:
  // Throws as `select` and `forced` do. `like` is what memory is allocated like; `stream` may be given an upload.
  ProductParts(const GroupedProblem& problem, const PartsOptions& options, const std::string& variant,
               const char* function, const Device& device, const Framework& framework, pybind11::handle like,
               CUstream stream);

  // Within launch_in_order; and in turn where other calls may use the memory between its launches, or the output.
  void run(CUstream stream) const;

  const Choice& choice() const { return choice_; }
  const Launch& product() const { return *product_; }
  size_t launches() const { return before_.size() + 1 + after_.size(); }
  std::vector<const gg_artifact*> artifacts() const;  // in the order of the launches

  // What owns the memory that `run` uses, if any. It may be handed over.
  const std::vector<pybind11::object>& memory() const { return memory_; }
  std::vector<pybind11::object> take_memory() { return std::exchange(memory_, {}); }

 private:
  std::vector<pybind11::object> memory_;
  Choice choice_{};
  std::vector<RepeatedLaunch> before_, after_;
  std::unique_ptr<Launch> product_;
};

// Selects, launches and keeps the memory as long as the launches need it: in the order of the stream, and as long as a
// graph that captures them. `problem` has outputs.
void run_product(const GroupedProblem& problem, const PartsOptions& options, const std::string& variant,
                 const Device& device, const Framework& framework, pybind11::handle like, CUstream stream);

}  // namespace gg
