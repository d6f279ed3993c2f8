#include "forms/table_key.hpp"

#include <cmath>

namespace gg {
namespace {

constexpr uint64_t layer_seed = 0x6c61796572;  // "layer": keeps keys of layers apart from those of lists

uint64_t mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9ull;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// Half powers of two of rows a group.
int64_t load_of(const GroupedProblem& product) {
  return std::lround(2 * std::log2(static_cast<double>(product.m) / static_cast<double>(product.groups)));
}

}  // namespace

uint64_t size_key(int64_t m, int64_t n, int64_t k) {
  return mix64(mix64(mix64(static_cast<uint64_t>(m)) + static_cast<uint64_t>(n)) + static_cast<uint64_t>(k));
}

uint64_t shape_key(const ListProblem& problem) {
  uint64_t key = mix64(problem.groups.size());
  for (const Run& run : problem.runs) key += static_cast<uint64_t>(run.count) * size_key(run.m, run.n, run.k);
  return key;
}

uint64_t layer_key(const GroupedProblem& product) {
  uint64_t key = mix64(layer_seed);
  if (product.groups == 0) return key;  // of no layer
  for (const int64_t size : {product.groups, product.n, product.k, load_of(product)}) {
    key = mix64(key + static_cast<uint64_t>(size));
  }
  return key;
}

}  // namespace gg
