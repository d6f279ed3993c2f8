// How a grouped product is divided into launches: what is predicted to take the least time.
#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "launch/product_parts.hpp"
#include "launch/ragged_k_parts.hpp"
#include "select/catalog.hpp"
#include "select/cost.hpp"

namespace gg {
namespace {

bool is_ragged_k(const GroupedProblem& p) { return p.extents == GG_K_ENDS; }

// A division and what is said of its launches.
struct Candidate {
  Division division;
  double predicted_us;
  bool measured;  // its product's kernel, at these sizes
};

std::optional<Candidate> candidate(const GroupedProblem& problem, const Division& division, const PartsOptions& options,
                                   const Device& device) {
  Parts parts = parts_of(problem, division, imagined_memory(), options);
  if (parts.gather && !is_ragged_k(problem)) parts.gather->rows = problem.predicted_rows();
  if (parts.activate) parts.activate->rows = problem.predicted_rows();
  const std::optional<Choice> choice = select_if_taken(parts.product, device);
  if (!choice) return std::nullopt;
  double us = choice->predicted_us;
  const auto add = [&](const auto& part) { us += choice_of(part, device).predicted_us + extra_launch_us; };
  each_before(parts, add);
  each_after(parts, add);
  return Candidate{division, us, choice->tuned && !choice->lent};
}

}  // namespace

std::optional<double> predicted_us(const GroupedProblem& problem, const Division& division, const PartsOptions& options,
                                   const Device& device) {
  const std::optional<Candidate> found = candidate(problem, division, options, device);
  return found ? std::optional(found->predicted_us) : std::nullopt;
}

namespace {

// All that a division depends on, besides the device and whether rows have weights: what guarantees are worked out
// from.
using DivisionKey = std::array<uint64_t, 20>;

DivisionKey key_of(const GroupedProblem& p) {
  const auto word = [](auto value) { return static_cast<uint64_t>(value); };
  const uint64_t aligned = (p.a & 15) << 12 | (p.b & 15) << 8 | (p.c & 15) << 4 | (p.activation.kept & 15);
  const uint64_t kinds = word(p.scaling) << 32 | word(p.dtype) << 24 | word(p.out_dtype) << 16 |
                         word(p.activation.order) << 8 | word(p.scale_c != 0) << 5 | word(p.activation.kept != 0) << 4 |
                         word(p.activation.fusible()) << 3 | word(p.has_activation()) << 2 |
                         word(p.index.data != 0) << 1 | word(p.batch_invariant);
  const uint64_t of_device = word(p.has_all_scales()) << 12 | word(p.k_alignment) << 4 |
                             word(p.factors.reads_output()) << 3 | word(may_accumulate(p)) << 2 |
                             word(p.index_b.data != 0) << 1 | word(p.ragged != 0);
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
          word(p.extents),
          word(p.a_group),
          word(p.c_group),
          word(p.index_b.a_rows),
          of_device};
}

std::vector<Division> divisions_of(const GroupedProblem& problem, const PartsOptions& options, const Device& device) {
  if (is_ragged_k(problem)) return divisions_of_k(problem, device);
  const Division all = all_parts(problem);
  std::vector<Division> found{all};
  const bool may_index = all.gathers && options.row_weights == 0;
  if (problem.activation.fusible()) found.push_back({all.gathers, false});
  if (may_index) found.push_back({false, all.activates});
  if (may_index && problem.activation.fusible()) found.push_back({false, false});
  return found;
}

Division least_time(const GroupedProblem& problem, const PartsOptions& options, const Device& device) {
  std::vector<Candidate> candidates;
  for (const Division& division : divisions_of(problem, options, device)) {
    if (const auto taken = candidate(problem, division, options, device)) candidates.push_back(*taken);
  }
  // A kernel that was measured with its activation stands against an activation apart whose product nobody measured,
  // whatever is predicted of either.
  const auto fuses = [&](const Candidate& one) { return problem.has_activation() && !one.division.activates; };
  const bool is_measured = std::any_of(candidates.begin(), candidates.end(),
                                       [&](const Candidate& one) { return one.measured && fuses(one); });
  const auto rank = [&](const Candidate& one) {
    return std::pair(is_measured && !one.measured && !fuses(one), one.predicted_us);
  };
  const auto least = std::min_element(candidates.begin(), candidates.end(),
                                      [&](const Candidate& x, const Candidate& y) { return rank(x) < rank(y); });
  return least == candidates.end() ? all_parts(problem) : least->division;
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
  const bool has_choice = is_ragged_k(problem) || problem.has_index() || problem.activation.fusible();
  if (!has_choice) return all_parts(problem);
  if (device.ordinal < 0) return least_time(problem, options, device);  // one that was only described
  const DivisionKey key = key_of(problem);
  Cached& cached = divisions[hash_of(key) % divisions.size()];
  const bool weighted = options.row_weights != 0;
  if (cached.device != device.ordinal || cached.key != key || cached.weighted != weighted) {
    cached = {key, device.ordinal, weighted, least_time(problem, options, device)};
  }
  return cached.division;
}

Division division_for(const GroupedProblem& p, const std::string& variant) {
  const gg_artifact* artifact = find_artifact(variant);
  if (!artifact) return all_parts(p);
  if (is_ragged_k(p)) {
    const bool accumulates = may_accumulate(p) && artifact->addressing == GG_HOST_DESCRIPTORS;
    const bool sums_apart = artifact->out_dtype != p.out_dtype;  // float32 sums of an output of 16 bits
    const Division all = all_parts(p);
    const bool adds = sums_apart || (p.factors.reads_output() && !accumulates);
    return {all.gathers && artifact->source != GG_SOURCE_INDEXED, false, adds, 1,
            all.gathers_b && artifact->source != GG_SOURCE_INDEXED_B};
  }
  return {p.has_index() && artifact->source == GG_SOURCE_ROWS, p.has_activation() && artifact->epilogue == GG_LINEAR};
}

}  // namespace gg
