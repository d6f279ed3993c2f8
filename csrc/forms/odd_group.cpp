// Which group keeps a list from a variant, and what of it.
#include <algorithm>

#include "arrays/dtype.hpp"
#include "driver/tensor_map.hpp"
#include "forms/list_problem.hpp"

namespace gg {
namespace {

// A matrix of a group as a kernel reads it, and as the caller knows it.
struct Side {
  std::string name;        // "B[17]"
  const char* lines;       // what lie `stride` apart: the caller's rows or columns
  const char* contiguous;  // the dimension that has to have unit stride: "K"
  uint64_t address;
  int64_t extent, step;   // of the contiguous dimension
  int64_t count, stride;  // of the other
  int bytes;              // of an element
  bool is_output;
};

std::string text(int64_t number) { return std::to_string(number); }

// What of one matrix breaks the guarantees of an artifact; empty if nothing does.
std::string oddity(const Side& s, bool is_aligned, bool described) {
  if (s.extent > 1 && s.step != 1) return s.name + " is not contiguous along " + s.contiguous;
  if (!is_aligned) return "";
  if (s.address % 16 != 0) return s.name + " is at an address that is no multiple of 16 bytes";
  if (s.count > 1 && described && s.stride <= 0) return s.name + " has the stride " + text(s.stride);
  const std::string stride = text(s.stride * s.bytes) + " bytes";
  if (s.count > 1 && !fills_16_bytes(s.stride, s.bytes)) {
    return s.name + " has " + s.lines + (s.stride == s.extent ? " of " + stride : " " + stride + " apart");
  }
  if (described && s.count > 1 && !is_describable(s.stride, s.bytes)) {
    return s.name + " has " + s.lines + " 2^40 bytes apart or more";
  }
  if ((s.is_output || !described) && !fills_16_bytes(s.extent, s.bytes)) {
    return s.name + " has " + s.lines + " of " + text(s.extent * s.bytes) + " bytes";
  }
  if (described && std::max(s.extent, s.count) > tma_extent_limit) return s.name + " has a dimension above 2^31 - 256";
  return "";
}

std::string oddity(const Group& g, const gg_artifact& artifact) {
  const std::string place = "[" + text(g.index) + "]";
  const bool described = artifact.addressing != GG_POINTERS;
  const bool is_aligned = artifact.alignment >= 16;
  if (described && g.k == 0) return "A" + place + " has K = 0";
  const char *m = g.turned ? "N" : "M", *n = g.turned ? "M" : "N";
  const char* lines[] = {g.turned ? "columns" : "rows", g.turned ? "rows" : "columns"};
  const int bytes = element_bytes(artifact.dtype), out_bytes = element_bytes(artifact.out_dtype);
  const std::string a = (g.turned ? "B" : "A") + place, b = (g.turned ? "A" : "B") + place;
  const Side sides[] = {
      a_by_columns(artifact) ? Side{a, lines[1], m, g.a, g.m, g.a_row, g.k, g.a_col, bytes, false}
                             : Side{a, lines[0], "K", g.a, g.k, g.a_col, g.m, g.a_row, bytes, false},
      b_by_columns(artifact) ? Side{b, lines[1], "K", g.b, g.k, g.b_row, g.n, g.b_col, bytes, false}
                             : Side{b, lines[0], n, g.b, g.n, g.b_col, g.k, g.b_row, bytes, false},
      Side{"out" + place, lines[0], n, g.c, g.n, g.c_col, g.m, g.c_row, out_bytes, true},
  };
  for (const Side& side : sides) {
    const std::string found = oddity(side, is_aligned, described);
    if (!found.empty()) return found;
  }
  return "";
}

}  // namespace

// The first of the caller's groups that does not keep what the artifact was compiled for, told by array and fact.
std::string ListProblem::culprit(const gg_artifact& artifact) const {
  if (artifact.layout == GG_STRIDED) return "";
  const Group* first = nullptr;
  std::string found;
  for (const Group& g : groups) {
    if (first && first->index < g.index) continue;
    std::string what = oddity(g, artifact);
    if (!what.empty()) first = &g, found = std::move(what);
  }
  return found;
}

}  // namespace gg
