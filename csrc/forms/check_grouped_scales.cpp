#include "forms/check_grouped_scales.hpp"

#include <algorithm>
#include <initializer_list>
#include <string>

#include "forms/guarantees.hpp"

namespace gg {
namespace {

ArgumentName argument(const char* what) { return {"grouped_mm", what}; }

bool is_one(const Tensor& t) { return t.rank <= 3 && t.shape[0] == 1 && t.shape[1] == 1 && t.shape[2] == 1; }

// Dimensions past the rank of a view have 1.
bool is_left_out(const Tensor& t) { return t.rank == 0 && t.shape[0] == 0; }

bool is_one_or_left_out(const Tensor& t) { return is_left_out(t) || is_one(t); }

std::string listed(std::initializer_list<int64_t> sizes) {
  std::string text;
  for (const int64_t size : sizes) text += (text.empty() ? "[" : ", ") + std::to_string(size);
  return text + "]";
}

bool has_shape(const Tensor& t, std::initializer_list<int64_t> sizes) {
  return t.rank == static_cast<int>(sizes.size()) && std::equal(sizes.begin(), sizes.end(), t.shape);
}

// What goes together, with the sizes of this product.
std::string pairs(const GroupedViews& v) {
  const int64_t rows = v.a.shape[0], groups = v.b.shape[0], n = v.b.shape[2];
  const int64_t k_blocks = ceil_div(v.a.shape[1], scale_block), n_blocks = ceil_div(n, scale_block);
  return "scale_a of 1 element goes with scale_b of 1 element or " + listed({groups}) + ", scale_a " + listed({rows}) +
         " with scale_b " + listed({groups, n}) + ", scale_a " + listed({rows, k_blocks}) + " with scale_b " +
         listed({groups, n_blocks, k_blocks}) + " (blocks of 128)";
}

void check_given(const GroupedViews& v, const Tensor& scale, const char* what) {
  if (is_left_out(scale)) return;
  check_scale_array(scale, argument(what), v.a.dtype);
  check_device(scale, argument(what), v.a, "mat_a");
}

[[noreturn]] void reject_shape(const GroupedViews& v, const Tensor& scale, const char* what,
                               const std::string& needed) {
  reject(argument(what), "has shape " + shape(scale) + "; " + needed + " is needed: " + pairs(v));
}

void check_shape(const GroupedViews& v, const Tensor& scale, const char* what, std::initializer_list<int64_t> sizes) {
  if (has_shape(scale, sizes)) return;
  const std::string needed = listed(sizes);
  if (is_left_out(scale)) reject(argument(what), "is missing; " + needed + " is needed: " + pairs(v));
  reject_shape(v, scale, what, needed);
}

}  // namespace

gg_scaling check_scales(const GroupedViews& v) {
  check_given(v, v.scale_a, "scale_a");
  check_given(v, v.scale_b, "scale_b");
  const int64_t rows = v.a.shape[0], groups = v.b.shape[0], n = v.b.shape[2];
  const bool all_are_one = is_one_or_left_out(v.scale_a) && is_one_or_left_out(v.scale_b);
  if (all_are_one || v.scale_b.rank < 2) {
    if (!is_one_or_left_out(v.scale_a)) reject_shape(v, v.scale_a, "scale_a", "1 element");
    const bool fits = is_one_or_left_out(v.scale_b) || has_shape(v.scale_b, {groups});
    if (!fits) reject_shape(v, v.scale_b, "scale_b", "1 element, or " + listed({groups}) + ", one for each group,");
    return GG_SCALING_TENSOR;
  }
  if (v.scale_b.rank == 2) {
    check_shape(v, v.scale_b, "scale_b", {groups, n});
    check_shape(v, v.scale_a, "scale_a", {rows});
    return GG_SCALING_ROW;
  }
  const int64_t k_blocks = ceil_div(v.a.shape[1], scale_block);
  check_shape(v, v.scale_b, "scale_b", {groups, ceil_div(n, scale_block), k_blocks});
  check_shape(v, v.scale_a, "scale_a", {rows, k_blocks});
  return GG_SCALING_BLOCK;
}

}  // namespace gg
