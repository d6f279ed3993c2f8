// What csrc finds in a generated table for a GPU of a name and a size.
#include <cstring>

#include "abi/artifact.h"
#include "driver/driver.hpp"
#include "select/tuned.hpp"

namespace {

gg::Device described(const char* name, int multiprocessors) {
  gg::Device device{};
  device.name = name;
  device.sm = 90;
  device.multiprocessors = multiprocessors;
  gg::compare_with_measured(device);
  return device;
}

}  // namespace

extern "C" {

// The artifact that won a bf16 product in nt, or null.
const char* tuned(const char* name, int multiprocessors, uint64_t key) {
  const gg::Device device = described(name, multiprocessors);
  const gg_tuned_row* row = device.gpu < 0 ? nullptr : gg::tuned_for(device.gpu, GG_BF16, GG_NT, key);
  return row ? gg_artifacts[row->artifact].name : nullptr;
}

double step_us(const char* name, int multiprocessors, int artifact) {
  return gg::cost_of(gg_artifacts[artifact], described(name, multiprocessors)).step_us;
}

const char* basis(const char* name, int multiprocessors, int artifact) {
  static char text[512];
  std::strncpy(text, gg::basis(gg_artifacts[artifact], described(name, multiprocessors)).c_str(), sizeof text - 1);
  return text;
}

}  // extern "C"
