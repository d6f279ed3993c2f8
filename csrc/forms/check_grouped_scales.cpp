#include "forms/check_grouped_scales.hpp"

#include <algorithm>
#include <string>

#include "forms/guarantees.hpp"

namespace gg {
namespace {

ArgumentName argument(const char* what) { return {"grouped_mm", what}; }

// Dimensions past the rank of a view have 1.
bool is_left_out(const Tensor& t) { return t.rank == 0 && t.shape[0] == 0; }

bool is_one_or_left_out(const Tensor& t) { return is_left_out(t) || is_one(t); }

struct Sizes {
  int rank;
  int64_t size[3];
};

std::string listed(const Sizes& sizes) {
  std::string text;
  for (int i = 0; i < sizes.rank; i++) text += (i == 0 ? "[" : ", ") + std::to_string(sizes.size[i]);
  return text + "]";
}

bool has_shape(const Tensor& t, const Sizes& sizes) {
  return t.rank == sizes.rank && std::equal(sizes.size, sizes.size + sizes.rank, t.shape);
}

// Of arrays of scales: of rows, which are [rows] of ragged ones and [E, M] of a stack, and of columns; of blocks.
struct ScaleShapes {
  Sizes rows, columns, row_blocks, column_blocks;
};

ScaleShapes shapes_of(const GroupedViews& v) {
  const int64_t *a = v.a.shape, groups = v.b.shape[0], n = v.b.shape[2];
  const int64_t k_blocks = ceil_div(v.b.shape[1], scale_block), n_blocks = ceil_div(n, scale_block);
  const Sizes columns{2, {groups, n}}, column_blocks{3, {groups, n_blocks, k_blocks}};
  if (v.a.rank == 3) return {{2, {a[0], a[1]}}, columns, {3, {a[0], a[1], k_blocks}}, column_blocks};
  return {{1, {a[0]}}, columns, {2, {a[0], k_blocks}}, column_blocks};
}

// What goes together, with the sizes of this product.
std::string pairs(const ScaleShapes& shapes) {
  const Sizes of_groups{1, {shapes.columns.size[0]}};
  return "scale_a of 1 element goes with scale_b of 1 element or " + listed(of_groups) + ", scale_a " +
         listed(shapes.rows) + " with scale_b " + listed(shapes.columns) + ", scale_a " + listed(shapes.row_blocks) +
         " with scale_b " + listed(shapes.column_blocks) + " (blocks of 128)";
}

void check_given(const GroupedViews& v, const Tensor& scale, const char* what) {
  if (is_left_out(scale)) return;
  check_scale_array(scale, argument(what), v.a.dtype);
  check_device(scale, argument(what), v.a, "mat_a");
}

// `pairs`: what goes together.
[[noreturn]] void reject_shape(const Tensor& scale, const char* what, const std::string& needed,
                               const std::string& pairs) {
  const std::string given = is_left_out(scale) ? "is missing" : "has shape " + shape(scale);
  reject(argument(what), given + "; " + needed + " is needed: " + pairs);
}

void check_shape(const ScaleShapes& shapes, const Tensor& scale, const char* what, const Sizes& sizes) {
  if (!has_shape(scale, sizes)) reject_shape(scale, what, listed(sizes), pairs(shapes));
}

// What goes together along a ragged K. Groups may end anywhere: each may begin a block that it does not fill.
std::string pairs_along_k(const GroupedViews& v) {
  const int64_t rows = v.a.shape[0], columns = v.b.shape[1], k = v.a.shape[1];
  const std::string most = std::to_string(k / scale_block + v.offs.shape[0]);
  return "scale_a of 1 element goes with scale_b of 1 element, scale_a [" + std::to_string(rows) +
         ", blocks] with scale_b [blocks, " + std::to_string(columns) +
         "], of each 128 of K from a group's start on: " + std::to_string(ceil_div(k, scale_block)) + " to " + most +
         " blocks";
}

void check_blocks(const GroupedViews& v, const Tensor& scale, const char* what, bool fits, const std::string& needed) {
  if (!fits) reject_shape(scale, what, needed, pairs_along_k(v));
}

}  // namespace

gg_scaling check_scales_along_k(const GroupedViews& v) {
  check_given(v, v.scale_a, "scale_a");
  check_given(v, v.scale_b, "scale_b");
  if (!is_fp8(v.a.dtype)) return GG_SCALING_TENSOR;
  if (is_one_or_left_out(v.scale_a) && is_one_or_left_out(v.scale_b)) return GG_SCALING_BLOCK;
  const int64_t rows = v.a.shape[0], columns = v.b.shape[1], k = v.a.shape[1];
  const bool fits_a = v.scale_a.rank == 2 && v.scale_a.shape[0] == rows;
  check_blocks(v, v.scale_a, "scale_a", fits_a, "[" + std::to_string(rows) + ", blocks]");
  const int64_t blocks = v.scale_a.shape[1];
  const bool counted = blocks >= ceil_div(k, scale_block) && blocks <= k / scale_block + v.offs.shape[0];
  check_blocks(v, v.scale_a, "scale_a", counted, "another number of blocks");
  const Sizes of_b{2, {blocks, columns}};
  check_blocks(v, v.scale_b, "scale_b", has_shape(v.scale_b, of_b), listed(of_b));
  return GG_SCALING_BLOCK;
}

gg_scaling check_scales(const GroupedViews& v) {
  check_given(v, v.scale_a, "scale_a");
  check_given(v, v.scale_b, "scale_b");
  if (is_left_out(v.scale_a) && is_left_out(v.scale_b)) return GG_SCALING_TENSOR;
  const ScaleShapes shapes = shapes_of(v);
  // Scales of one row, or of one block, may be arrays of one element each. They are not scales of tensors, which take
  // other kernels: the bits of a row would then depend on whether it is alone.
  const bool of_rows = has_shape(v.scale_a, shapes.rows) && has_shape(v.scale_b, shapes.columns);
  const bool of_blocks = has_shape(v.scale_a, shapes.row_blocks) && has_shape(v.scale_b, shapes.column_blocks);
  const bool all_are_one = !of_rows && !of_blocks && is_one_or_left_out(v.scale_a) && is_one_or_left_out(v.scale_b);
  if (all_are_one || v.scale_b.rank < 2) {
    const Sizes of_groups{1, {v.b.shape[0]}};
    if (!is_one_or_left_out(v.scale_a)) reject_shape(v.scale_a, "scale_a", "1 element", pairs(shapes));
    const bool fits = is_one_or_left_out(v.scale_b) || has_shape(v.scale_b, of_groups);
    if (!fits) {
      const std::string needed = "1 element, or " + listed(of_groups) + ", one for each group,";
      reject_shape(v.scale_b, "scale_b", needed, pairs(shapes));
    }
    return GG_SCALING_TENSOR;
  }
  const bool by_row = v.scale_b.rank == 2;
  check_shape(shapes, v.scale_b, "scale_b", by_row ? shapes.columns : shapes.column_blocks);
  check_shape(shapes, v.scale_a, "scale_a", by_row ? shapes.rows : shapes.row_blocks);
  return by_row ? GG_SCALING_ROW : GG_SCALING_BLOCK;
}

}  // namespace gg
