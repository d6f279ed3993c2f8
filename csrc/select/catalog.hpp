// The embedded artifacts, by the device that they serve.
#pragma once

#include <string>
#include <vector>

#include "arrays/dtype.hpp"
#include "driver/driver.hpp"
#include "driver/module.hpp"
#include "forms/problem.hpp"

namespace gg {

// The embedded architecture whose kernels a device takes: its own, else the nearest that its cubins or PTX can run on.
// Throws UnsupportedError when there is none.
struct Architecture {
  int sm;
  bool from_ptx;
};
Architecture resolve_architecture(const Device& device);

// Those that serve one compute capability, by their signatures.
struct Catalog {
  using Variants = std::vector<const gg_artifact*>;
  Architecture architecture;
  Variants others[GG_FORM_COUNT];  // by form, of those that multiply nothing

  const Variants& of(const Signature& s) const {
    return variants[s.form][s.extents][s.dtype][s.out_dtype][s.scaling][s.epilogue][s.source];
  }
  Variants& of(const Signature& s) { return const_cast<Variants&>(static_cast<const Catalog&>(*this).of(s)); }

  static constexpr int product_forms = 2;  // of those that multiply
  static_assert(GG_LIST < product_forms && GG_GROUPED < product_forms);
  Variants variants[product_forms][GG_EXTENTS_COUNT][GG_DTYPE_COUNT][GG_DTYPE_COUNT][GG_SCALING_COUNT]
                   [GG_EPILOGUE_COUNT][GG_SOURCE_COUNT];
};

// Made once for each architecture that kernels come from, never changed after. Throws UnsupportedError when nothing
// serves the device.
const Catalog& catalog(const Device& device);

// Whether a device can launch the artifact at all: architecture and shared memory.
bool eligible(const gg_artifact& artifact, const Device& device);
bool enough_shared_memory(const gg_artifact& artifact, const Device& device);

[[noreturn]] void missing_artifact(gg_form form);

// The first kernel of a form that multiplies nothing that `takes` says yes to. Throws ArtifactError where there is
// none.
template <typename Takes>
const gg_artifact& other_artifact(const Device& device, gg_form form, const Takes& takes) {
  for (const gg_artifact* artifact : catalog(device).others[form]) {
    if (takes(*artifact)) return *artifact;
  }
  missing_artifact(form);
}

// That for elements of the dtype which moves 16 bytes at once, or one element.
const gg_artifact& vector_artifact(const Device& device, gg_form form, gg_dtype dtype, bool vectorized);

// The kernel `pack` for the device.
const gg_artifact& pack_artifact(const Device& device);

// Words that one launch of `pack` brings to the device.
size_t upload_capacity(const Device& device);

// Null where no artifact has the name.
const gg_artifact* find_artifact(const std::string& name);

}  // namespace gg
