// From views that were checked to a problem: what each form makes M, N and K, and strides of groups.
#include <utility>

#include "forms/check_grouped.hpp"
#include "forms/overlap.hpp"

namespace gg {
namespace {

// The operands of the product that kernels compute. Ragged columns are ragged rows of the transposed product:
// out.T = mat_b.T @ mat_a.mT of each group.
struct Operands {
  Tensor a, b;
};

// With its last two dimensions swapped.
Tensor transposed(Tensor t) {
  std::swap(t.shape[t.rank - 2], t.shape[t.rank - 1]);
  std::swap(t.stride[t.rank - 2], t.stride[t.rank - 1]);
  return t;
}

Operands operands_of(const CheckedGrouped& product) {
  const GroupedViews& v = product.views;
  if (product.form == GroupedForm::ragged_n) return {transposed(v.b), transposed(v.a)};
  return {v.a, v.b};
}

void set_operands(GroupedProblem& p, const Operands& of) {
  const int64_t *a = of.a.stride, *b = of.b.stride;
  p.a = of.a.data, p.b = of.b.data;
  if (of.a.rank == 3) p.a_group = *a++;
  if (of.b.rank == 3) p.b_group = *b++;
  p.a_row = a[0], p.a_col = a[1];
  p.b_row = b[0], p.b_col = b[1];
}

void set_sizes(GroupedProblem& p, const CheckedGrouped& product) {
  p.groups = product.sizes.groups, p.m = product.sizes.m, p.n = product.sizes.n, p.k = product.sizes.k;
  if (product.form == GroupedForm::ragged_n) std::swap(p.m, p.n);
}

gg_extents extents_of(GroupedForm form) {
  if (form == GroupedForm::ragged_k) return GG_K_ENDS;
  return form == GroupedForm::stack ? GG_M_COUNTS : GG_M_ENDS;
}

RowIndex index_of(const Tensor& index, int64_t rows) {
  if (index.rank == 0) return {};
  return {index.data, static_cast<int>(bytes_of(index)), rows};
}

// Of blocks along K. One scale is that of all blocks: it has strides of zero.
void set_scale_strides_along_k(GroupedProblem& p, const Tensor& a, const Tensor& b) {
  if (a.rank == 0 || b.rank == 0 || (a.shape[0] * a.shape[1] == 1 && b.shape[0] * b.shape[1] == 1)) {
    p.scale_blocks = 1;
    return;
  }
  p.scale_blocks = b.shape[0];
  p.scale_a_row = a.stride[0], p.scale_a_k = a.stride[1];
  p.scale_b_k = b.stride[0], p.scale_b_n = b.stride[1];
}

// One scale has no strides, whatever its rank.
void set_scale_strides(GroupedProblem& p, const CheckedGrouped& product) {
  const Tensor &a = product.views.scale_a, &b = product.views.scale_b;
  p.scaling = product.scaling;
  if (product.form == GroupedForm::ragged_k) return set_scale_strides_along_k(p, a, b);
  if (b.shape[0] > 1 || product.scaling != GG_SCALING_TENSOR) p.scale_b_step = b.stride[0];
  if (product.scaling == GG_SCALING_TENSOR) return;
  const int64_t* of_a = a.stride;
  if (product.form == GroupedForm::stack) p.scale_a_group = *of_a++;
  p.scale_a_row = of_a[0], p.scale_b_n = b.stride[1];
  if (product.scaling == GG_SCALING_BLOCK) p.scale_a_k = of_a[1], p.scale_b_k = b.stride[2];
}

// Row-major, as new outputs are.
void set_new_output(GroupedProblem& p, const CheckedGrouped& product) {
  p.c_row = p.output_columns(), p.c_col = 1;
  if (product.form == GroupedForm::ragged_n) p.c_row = 1, p.c_col = p.m;
  if (p.has_output_stack()) p.c_group = p.m * p.output_columns();
}

}  // namespace

GroupedProblem make_grouped(const CheckedGrouped& product, const Activation& activation, const Factors& factors,
                            bool batch_invariant) {
  const GroupedViews& v = product.views;
  GroupedProblem p{};
  p.extents = extents_of(product.form);
  p.dtype = product.dtype, p.out_dtype = product.out_dtype;
  set_sizes(p, product);
  set_operands(p, operands_of(product));
  p.activation = activation;
  p.activation.kept = v.preactivation.data, p.activation.kept_row = v.preactivation.stride[0];
  // Rows of A, or for a ragged K its columns.
  p.index = index_of(v.index, v.a.shape[product.form == GroupedForm::ragged_k ? 1 : 0]);
  p.index_b = index_of(v.b_index, v.b.shape[0]);
  p.factors = factors;
  p.splits = 1;
  p.k_alignment = product.k_alignment;
  p.ragged = product.form == GroupedForm::stack ? v.counts.data : v.offs.data;
  p.bias = v.bias.data, p.bias_row = v.bias.stride[0], p.bias_col = v.bias.stride[1];
  p.scale_a = v.scale_a.data, p.scale_b = v.scale_b.data;
  set_scale_strides(p, product);
  p.batch_invariant = batch_invariant;
  set_new_output(p, product);
  if (v.out.rank == 0) p.complete();
  else p.set_output(product.form == GroupedForm::ragged_n ? transposed(v.out) : v.out);
  return p;
}

void CheckedGrouped::set_output(const Tensor& view) {
  views.out = view;
  problem.set_output(form == GroupedForm::ragged_n ? transposed(view) : view);
}

}  // namespace gg
