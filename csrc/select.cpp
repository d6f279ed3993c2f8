#include "select.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <set>

#include "error.hpp"

namespace gg {
namespace {

// Rough rates of one multiprocessor, for variants that nobody has measured yet: products and L2 bytes a microsecond.
struct Rates {
  double flop_per_us, l2_bytes_per_us;
};
constexpr Rates ampere{1.7e6, 3.0e4}, hopper{4.5e6, 4.0e4};

double element_cost(const gg_artifact& artifact) {
  if (artifact.alignment >= 16) return 1;
  return artifact.layout == GG_STRIDED ? 6 : 4;
}

// CTAs of the artifact that one multiprocessor holds, from its own registers, shared memory and threads.
int blocks_per_multiprocessor(const gg_artifact& artifact, const Device& device) {
  constexpr int register_file = 64 * 1024, threads_limit = 2048, block_reserve = 1024;
  const int by_shared = (device.shared_bytes_per_block + block_reserve) / (artifact.shared_bytes + block_reserve);
  const int by_registers = register_file / std::max(1, artifact.registers * artifact.threads);
  return std::max(1, std::min({by_shared, by_registers, threads_limit / std::max(1, artifact.threads)}));
}

struct TileCost {
  double launch_us, tile_us, step_us;
};

TileCost tile_cost(const gg_artifact& artifact, int blocks) {
  if (artifact.step_us > 0) return {artifact.launch_us, artifact.tile_us, artifact.step_us};
  const Rates& rate = artifact.sm >= 90 ? hopper : ampere;
  const double flop = 2.0 * artifact.block_m * artifact.block_n * artifact.block_k;
  const double bytes = 2.0 * (artifact.block_m + artifact.block_n) * artifact.block_k;
  const double step = std::max(flop / rate.flop_per_us, bytes / rate.l2_bytes_per_us) * blocks * element_cost(artifact);
  return {2.0, 1.0, step};
}

// ceil(size / block) for a block that is a power of two: this runs some hundred times a call, and division is slow.
int64_t tiles_along(int64_t size, int block) { return (size + block - 1) >> __builtin_ctz(static_cast<unsigned>(block)); }

// CTA 0 has the most work: it takes tiles 0, P, 2P, ... of a list that is sorted by falling K, P CTAs in all.
double predict_us(const gg_artifact& artifact, const Problem& problem, const Device& device) {
  const int blocks = blocks_per_multiprocessor(artifact, device);
  const int64_t ctas = static_cast<int64_t>(blocks) * device.multiprocessors;
  const TileCost cost = tile_cost(artifact, blocks);
  double us = cost.launch_us;
  int64_t next = 0, end = 0;
  for (const Run& run : problem.runs) {
    end += run.count * (tiles_along(run.m, artifact.block_m) * tiles_along(run.n, artifact.block_n));
    if (next >= end) continue;
    const int64_t turns = end - next <= ctas ? 1 : ceil_div(end - next, ctas);
    const int64_t steps = tiles_along(run.k, artifact.block_k);
    us += static_cast<double>(turns) * (cost.tile_us + static_cast<double>(steps) * cost.step_us);
    next += turns * ctas;
  }
  return us;
}

uint64_t mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9ull;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// The sizes of a list as one number, whatever the order of its groups. aot/tables.py computes the same.
uint64_t shape_key(const Problem& problem) {
  uint64_t key = mix64(problem.groups.size());
  for (const Group& g : problem.groups) {
    key += mix64(mix64(mix64(static_cast<uint64_t>(g.m)) + static_cast<uint64_t>(g.n)) + static_cast<uint64_t>(g.k));
  }
  return key;
}

bool less(const gg_tuned_row& x, const gg_tuned_row& y) {
  if (x.sm != y.sm) return x.sm < y.sm;
  if (x.dtype != y.dtype) return x.dtype < y.dtype;
  if (x.layout != y.layout) return x.layout < y.layout;
  return x.shape < y.shape;
}

const gg_artifact* tuned_artifact(const Problem& problem, int sm, const Device& device) {
  const gg_tuned_row* end = gg_tuned_rows + gg_tuned_row_count;
  const uint64_t shape = shape_key(problem);
  for (int layout = GG_NN; layout <= GG_TT; layout++) {
    if (!(problem.unit_stride >> layout & 1)) continue;
    const gg_tuned_row wanted{sm, problem.dtype, static_cast<gg_layout>(layout), shape, 0};
    const gg_tuned_row* row = std::lower_bound(gg_tuned_rows, end, wanted, less);
    if (row == end || less(wanted, *row)) continue;
    const gg_artifact& artifact = gg_artifacts[row->artifact];
    if (ruled_out(artifact, problem, device).empty()) return &artifact;
  }
  return nullptr;
}

std::string built_architectures() {
  std::set<int> built;
  for (int i = 0; i < gg_artifact_count; i++) built.insert(gg_artifacts[i].sm);
  std::string text;
  for (const int sm : built) text += (text.empty() ? "sm_" : ", sm_") + std::to_string(sm);
  return text;
}

struct Shelf {
  int sm;
  std::vector<const gg_artifact*> lists[2];  // by dtype
  const gg_artifact* pack = nullptr;
};

// The artifacts that serve one compute capability; made once, never changed after.
const Shelf& shelf(const Device& device) {
  static std::mutex mutex;
  static std::map<int, Shelf> shelves;
  thread_local const Shelf* last = nullptr;
  thread_local int last_sm = 0;
  if (last && last_sm == device.sm) return *last;
  const std::lock_guard<std::mutex> lock(mutex);
  auto found = shelves.find(device.sm);
  if (found == shelves.end()) {
    Shelf made;
    made.sm = serving(device).sm;
    for (int i = 0; i < gg_artifact_count; i++) {
      const gg_artifact& artifact = gg_artifacts[i];
      if (artifact.sm != made.sm) continue;
      if (artifact.kernel == GG_PACK) made.pack = &artifact;
      else made.lists[artifact.dtype].push_back(&artifact);
    }
    found = shelves.emplace(device.sm, std::move(made)).first;
  }
  last = &found->second;
  last_sm = device.sm;
  return *last;
}

// The promises that the artifact was compiled with and the list does not keep; null if it keeps all.
const char* broken_promise(const gg_artifact& artifact, const Problem& problem) {
  if (artifact.layout == GG_STRIDED) return nullptr;
  const auto bit = static_cast<LayoutMask>(1u << artifact.layout);
  if (!(problem.unit_stride & bit)) return "the unit strides of its layout are not those of the tensors";
  if (artifact.alignment < 16) return nullptr;
  if (artifact.kernel == GG_BASIC) {
    if (problem.vectorized & bit) return nullptr;
    return "it needs pointers on 16 bytes, and leading strides and contiguous extents that 8 divides";
  }
  if (problem.described & bit) return nullptr;
  return "TMA needs pointers on 16 bytes, positive leading strides and an N that 8 divides, and K > 0";
}

bool enough_shared_memory(const gg_artifact& artifact, const Device& device) {
  return artifact.shared_bytes <= device.shared_bytes_per_block;
}

}  // namespace

Serving serving(const Device& device) {
  Serving best{0, true};
  for (int i = 0; i < gg_artifact_count; i++) {
    const ImageKind kind = image_for(gg_artifacts[i], device);
    if (kind == ImageKind::none) continue;
    const Serving found{gg_artifacts[i].sm, kind == ImageKind::ptx};
    const bool better = found.from_ptx == best.from_ptx ? found.sm > best.sm : best.from_ptx;
    if (better) best = found;
  }
  if (best.sm > 0) return best;
  throw UnsupportedError("no embedded kernel runs on " + device.name + " (sm_" + std::to_string(device.sm) +
                         "): this wheel was built for " + built_architectures() +
                         "; use a GPU of compute capability 8.0 or later, or build with ARCHS=\"" +
                         std::to_string(device.sm) + "\"");
}

bool eligible(const gg_artifact& artifact, const Device& device) {
  return image_for(artifact, device) != ImageKind::none && enough_shared_memory(artifact, device);
}

std::string ruled_out(const gg_artifact& artifact, const Problem& problem, const Device& device) {
  if (artifact.kernel == GG_PACK) return "it multiplies nothing";
  if (artifact.dtype != problem.dtype) return "it is for another dtype";
  if (image_for(artifact, device) == ImageKind::none) return "sm_" + std::to_string(artifact.sm) + " code does not run on this GPU";
  if (!enough_shared_memory(artifact, device)) {
    return "it needs " + std::to_string(artifact.shared_bytes) + " bytes of shared memory and a block may have " +
           std::to_string(device.shared_bytes_per_block);
  }
  const char* broken = broken_promise(artifact, problem);
  return broken ? broken : "";
}

Choice select(const Problem& problem, const Device& device) {
  const Shelf& available = shelf(device);
  if (gg_tuned_row_count > 0) {
    if (const gg_artifact* tuned = tuned_artifact(problem, available.sm, device)) {
      return {tuned, image_for(*tuned, device), predict_us(*tuned, problem, device), true};
    }
  }
  const gg_artifact* best = nullptr;
  double best_us = 0;
  for (const gg_artifact* artifact : available.lists[problem.dtype]) {
    if (!enough_shared_memory(*artifact, device) || broken_promise(*artifact, problem)) continue;
    const double us = predict_us(*artifact, problem, device);
    if (!best || us < best_us) best = artifact, best_us = us;
  }
  if (!best) {
    throw UnsupportedError("no embedded sm_" + std::to_string(available.sm) + " variant takes this list on " + device.name +
                           " with " + std::to_string(device.shared_bytes_per_block) +
                           " bytes of shared memory a block; gg_runtime.explain(...) lists each reason");
  }
  return {best, image_for(*best, device), best_us, false};
}

std::vector<Considered> considered(const Problem& problem, const Device& device) {
  std::vector<Considered> all;
  for (const gg_artifact* artifact : shelf(device).lists[problem.dtype]) {
    std::string why = ruled_out(*artifact, problem, device);
    const double us = why.empty() ? predict_us(*artifact, problem, device) : 0;
    all.push_back({artifact, us, std::move(why)});
  }
  std::stable_sort(all.begin(), all.end(), [](const Considered& x, const Considered& y) {
    if (x.ruled_out.empty() != y.ruled_out.empty()) return x.ruled_out.empty();
    return x.predicted_us < y.predicted_us;
  });
  return all;
}

const gg_artifact& pack_artifact(const Device& device) {
  const gg_artifact* pack = shelf(device).pack;
  if (!pack) throw ArtifactError("the kernel pack is missing from this wheel; rebuild it with make build");
  return *pack;
}

const gg_artifact* find_artifact(const std::string& name) {
  const gg_artifact* end = gg_artifacts + gg_artifact_count;
  const gg_artifact* found = std::lower_bound(gg_artifacts, end, name.c_str(), [](const gg_artifact& artifact, const char* wanted) {
    return std::strcmp(artifact.name, wanted) < 0;
  });
  return found != end && name == found->name ? found : nullptr;
}

}  // namespace gg
