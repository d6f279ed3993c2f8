#include "select/parts.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "forms/list_record.hpp"
#include "select/catalog.hpp"
#include "select/cost.hpp"

namespace gg {
namespace {

bool has_descriptor_kernels(const ListProblem& problem, const Device& device) {
  const Catalog::Variants& variants = catalog(device).of(problem.signature());
  return std::any_of(variants.begin(), variants.end(), [](const gg_artifact* one) { return takes_descriptors(*one); });
}

double products(const Group& g) {
  return static_cast<double>(g.m) * static_cast<double>(g.n) * static_cast<double>(g.k);
}

double products(const ListProblem& problem) {
  double sum = 0;
  for (const Group& g : problem.groups) sum += products(g);
  return sum;
}

// The groups that a TMA kernel takes, in the layout in which they have the most products.
std::vector<bool> describable(const ListProblem& problem) {
  double sums[GG_TT + 1] = {};
  std::vector<LayoutMask> kept;
  for (const Group& g : problem.groups) {
    const Guarantees masks = guarantees_of(g, problem.dtype, problem.out_dtype);
    kept.push_back(masks.unit_stride & masks.described);
    for (int layout = GG_NN; layout <= GG_TT; layout++) {
      if (kept.back() >> layout & 1) sums[layout] += products(g);
    }
  }
  const auto layout = std::max_element(std::begin(sums), std::end(sums)) - std::begin(sums);
  std::vector<bool> found;
  found.reserve(kept.size());
  for (const LayoutMask mask : kept) found.push_back(mask >> layout & 1);
  return found;
}

double predicted_us(const Part& part) { return part.choice.predicted_us + part.choice.upload_us; }

Part make_part(ListProblem problem, const Device& device, Use use) {
  const Choice choice = select(problem, device, use);
  return {std::move(problem), choice};
}

}  // namespace

std::vector<Part> divide(ListProblem all, const Device& device, Use use) {
  std::vector<Part> whole;
  whole.push_back(make_part(std::move(all), device, use));
  const ListProblem& problem = whole[0].problem;
  const bool all_describable = problem.guarantees.unit_stride & problem.guarantees.described;
  if (all_describable || problem.groups.size() < 2 || whole[0].choice.tuned) return whole;
  if (!has_descriptor_kernels(problem, device)) return whole;
  std::vector<bool> wanted = describable(problem);
  const auto count = std::count(wanted.begin(), wanted.end(), true);
  if (count == 0 || static_cast<size_t>(count) == wanted.size()) return whole;
  std::vector<Part> parts;
  parts.push_back(make_part(subset(problem, wanted), device, use));
  wanted.flip();
  parts.push_back(make_part(subset(problem, wanted), device, use));
  if (products(parts[0].problem) < products(parts[1].problem)) std::swap(parts[0], parts[1]);
  const double us = predicted_us(parts[0]) + predicted_us(parts[1]) + extra_launch_us;
  return us < predicted_us(whole[0]) ? std::move(parts) : std::move(whole);
}

}  // namespace gg
