#include "select/catalog.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>

#include "driver/error.hpp"

namespace gg {
namespace {

constexpr int oldest_sm = 80;  // that the builder takes

std::string built_architectures() {
  std::set<int> built;
  for (int i = 0; i < gg_artifact_count; i++) built.insert(gg_artifacts[i].sm);
  std::string text;
  for (const int sm : built) text += (text.empty() ? "sm_" : ", sm_") + std::to_string(sm);
  return text;
}

// Not on the stack: it has half a megabyte of lists, and a thread may have less.
std::unique_ptr<const Catalog> make_catalog(const Architecture& architecture) {
  auto made = std::make_unique<Catalog>();
  made->architecture = architecture;
  for (int i = 0; i < gg_artifact_count; i++) {
    const gg_artifact& artifact = gg_artifacts[i];
    if (artifact.sm != made->architecture.sm) continue;
    const bool multiplies = artifact.form == GG_LIST || artifact.form == GG_GROUPED;
    if (!multiplies) {
      made->others[artifact.form].push_back(&artifact);
      continue;
    }
    for (const gg_source source : {GG_SOURCE_ROWS, GG_SOURCE_INDEXED, GG_SOURCE_INDEXED_B}) {
      Signature served = signature_of(artifact);
      if (!takes(artifact, source)) continue;
      served.source = source;
      made->of(served).push_back(&artifact);
    }
  }
  return made;
}

}  // namespace

const Catalog& catalog(const Device& device) {
  struct Last {
    const Catalog* catalog;
    int sm;
  };
  thread_local Last last{};  // one variable: finding it takes a call
  if (last.catalog && last.sm == device.sm) return *last.catalog;
  static std::mutex mutex;
  static std::map<std::pair<int, bool>, std::unique_ptr<const Catalog>> catalogs;
  const Architecture architecture = resolve_architecture(device);
  const std::lock_guard<std::mutex> lock(mutex);
  std::unique_ptr<const Catalog>& found = catalogs[{architecture.sm, architecture.from_ptx}];
  if (!found) found = make_catalog(architecture);
  last = {found.get(), device.sm};
  return *found;
}

Architecture resolve_architecture(const Device& device) {
  Architecture best{0, true};
  for (int i = 0; i < gg_artifact_count; i++) {
    const ImageKind kind = image_for(gg_artifacts[i], device);
    if (kind == ImageKind::none) continue;
    const Architecture found{gg_artifacts[i].sm, kind == ImageKind::ptx};
    const bool better = found.from_ptx == best.from_ptx ? found.sm > best.sm : best.from_ptx;
    if (better) best = found;
  }
  if (best.sm > 0) return best;
  const std::string sm = std::to_string(device.sm), build = ", or build with ARCHS=\"" + sm + "\"";
  throw UnsupportedError("no embedded kernel runs on " + device.name + " (sm_" + sm + "): this wheel was built for " +
                         built_architectures() + "; use a GPU of compute capability 8.0 or later" +
                         (device.sm >= oldest_sm ? build : ""));
}

bool enough_shared_memory(const gg_artifact& artifact, const Device& device) {
  return artifact.shared_bytes <= device.shared_bytes_per_block;
}

bool eligible(const gg_artifact& artifact, const Device& device) {
  return image_for(artifact, device) != ImageKind::none && enough_shared_memory(artifact, device);
}

void missing_artifact(gg_form form) {
  throw ArtifactError(std::string("this wheel has no kernel for ") + gg_form_names[form] +
                      "; rebuild it with make build, and all kernels");
}

const gg_artifact& vector_artifact(const Device& device, gg_form form, gg_dtype dtype, bool vectorized) {
  const int alignment = vectorized ? 16 : 2;
  return other_artifact(device, form,
                        [&](const gg_artifact& one) { return one.dtype == dtype && one.alignment == alignment; });
}

const gg_artifact& pack_artifact(const Device& device) {
  return other_artifact(device, GG_UPLOAD, [](const gg_artifact&) { return true; });
}

size_t upload_capacity(const Device& device) { return static_cast<size_t>(pack_artifact(device).word_capacity); }

const gg_artifact* find_artifact(const std::string& name) {
  const auto before = [](const gg_artifact& one, const char* wanted) { return std::strcmp(one.name, wanted) < 0; };
  const gg_artifact* end = gg_artifacts + gg_artifact_count;
  const gg_artifact* found = std::lower_bound(gg_artifacts, end, name.c_str(), before);
  return found != end && name == found->name ? found : nullptr;
}

}  // namespace gg
