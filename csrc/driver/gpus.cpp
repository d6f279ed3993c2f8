#include "driver/gpus.hpp"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstring>
#include <vector>

#include "abi/artifact.h"
#include "driver/driver.hpp"

namespace gg {
namespace {

// Of the tensor rate of the datasheet, the part that the best kernels reached where the tables were measured: 821 of
// 989 TFLOP/s (README).
constexpr double reached = 0.83;

constexpr Scale unscaled{1, 1, 1, 0};

bool continues_word(const std::string& text, size_t at) {
  return at < text.size() && std::isalnum(static_cast<unsigned char>(text[at]));
}

// Whether the words stand in the text as whole ones: "H20" is in "NVIDIA H20-3e", not in "NVIDIA H200".
bool has_words(const std::string& text, const char* words) {
  const size_t length = std::strlen(words);
  for (size_t at = text.find(words); at != std::string::npos; at = text.find(words, at + 1)) {
    if ((at == 0 || !continues_word(text, at - 1)) && !continues_word(text, at + length)) return true;
  }
  return false;
}

// The row with the longest name that the device's has, or null; aot/spec/gpus.py finds the same.
const gg_tensor_rate* tensor_rate_of(const Device& device) {
  const gg_tensor_rate* found = nullptr;
  for (int i = 0; i < gg_tensor_rate_count; i++) {
    const gg_tensor_rate& row = gg_tensor_rates[i];
    const bool longer = !found || std::strlen(row.name) > std::strlen(found->name);
    if (longer && has_words(device.name, row.name)) found = &row;
  }
  return found;
}

// A part of a GPU, as MIG makes, has the whole one's tensor rate in each multiprocessor.
double tensor_tflop_s(const gg_tensor_rate& rate, const Device& device) {
  return rate.tensor_tflop_s / rate.multiprocessors * device.multiprocessors;
}

bool is_same(const gg_gpu& measured, const Device& device) {
  return device.name == measured.name && device.sm == measured.sm && device.multiprocessors == measured.multiprocessors;
}

Scale scale_from(const gg_gpu& measured, const Device& device, const gg_tensor_rate* rate) {
  Scale scale = unscaled;
  if (device.clock_mhz > 0 && measured.clock_mhz > 0) scale.clock = measured.clock_mhz / device.clock_mhz;
  if (device.memory_gb_s > 0 && measured.memory_gb_s > 0) scale.memory = measured.memory_gb_s / device.memory_gb_s;
  scale.tensor = scale.clock;
  if (measured.tensor_tflop_s <= 0) return scale;  // no datasheet was read: steps go by the clock alone
  const double flop_per_us = 1e6 * measured.tensor_tflop_s / measured.multiprocessors;
  scale.tensor_us_per_flop = 1 / (reached * flop_per_us);
  if (rate) scale.tensor = flop_per_us / (1e6 * rate->tensor_tflop_s / rate->multiprocessors);
  return scale;
}

bool before(const gg_cost& x, const gg_cost& y) { return x.gpu != y.gpu ? x.gpu < y.gpu : x.artifact < y.artifact; }

// What was measured on a GPU that is not the artifact's reference, or null.
const gg_cost* other_cost(const gg_artifact& artifact, int gpu) {
  const gg_cost wanted{gpu, static_cast<int32_t>(&artifact - gg_artifacts), 0, 0, 0, 0};
  const gg_cost* end = gg_costs + gg_cost_count;
  const gg_cost* found = std::lower_bound(gg_costs, end, wanted, before);
  return found == end || before(wanted, *found) ? nullptr : found;
}

std::string ratio(const char* what, double here, double measured, const char* unit) {
  char text[128];
  std::snprintf(text, sizeof text, "%s %.4g/%.4g%s", what, here, measured, unit);
  return text;
}

}  // namespace

void compare_with_measured(Device& device) {
  const gg_tensor_rate* rate = tensor_rate_of(device);
  device.gpu = -1;
  device.scales.clear();
  for (int i = 0; i < gg_gpu_count; i++) {
    const bool same = is_same(gg_gpus[i], device);
    if (same) device.gpu = i;
    device.scales.push_back(same ? unscaled : scale_from(gg_gpus[i], device, rate));
  }
}

Cost cost_of(const gg_artifact& artifact, const Device& device) {
  if (device.gpu >= 0 && device.gpu != artifact.gpu) {
    if (const gg_cost* own = other_cost(artifact, device.gpu)) {
      return {own->launch_us, own->tile_us, own->step_us, own->stream_gb_s, own->gpu};
    }
  }
  return {artifact.launch_us, artifact.tile_us, artifact.step_us, artifact.stream_gb_s, artifact.gpu};
}

const Scale& scale_for(const Cost& cost, const Device& device) {
  if (cost.gpu < 0 || cost.gpu == device.gpu) return unscaled;
  return device.scales[static_cast<size_t>(cost.gpu)];
}

std::string basis(const gg_artifact& artifact, const Device& device) {
  const Cost cost = cost_of(artifact, device);
  if (cost.step_us <= 0) return "cost model with rough rates, as this variant was measured on no GPU";
  const gg_gpu& measured = gg_gpus[cost.gpu];
  std::string text = std::string("cost model measured on ") + measured.name;
  if (cost.gpu == device.gpu) return text;
  std::vector<std::string> by;
  const gg_tensor_rate* rate = tensor_rate_of(device);
  if (rate && measured.tensor_tflop_s > 0) {
    by.push_back(ratio("tensor rate", tensor_tflop_s(*rate, device), measured.tensor_tflop_s, " TFLOP/s"));
  } else {
    by.push_back(ratio("multiprocessors", device.multiprocessors, measured.multiprocessors, ""));
  }
  const bool by_clock = device.clock_mhz > 0 && measured.clock_mhz > 0;
  const bool by_memory = device.memory_gb_s > 0 && measured.memory_gb_s > 0;
  if (by_clock) by.push_back(ratio("clock", device.clock_mhz, measured.clock_mhz, " MHz"));
  if (by_memory) by.push_back(ratio("memory rate", device.memory_gb_s, measured.memory_gb_s, " GB/s"));
  std::string list = by[0];
  for (size_t i = 1; i < by.size(); i++) list += (i + 1 == by.size() ? " and " : ", ") + by[i];
  return text + ", scaled to " + device.name + " by " + list;
}

}  // namespace gg
