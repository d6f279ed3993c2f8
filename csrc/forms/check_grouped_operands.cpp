#include "forms/check_grouped_operands.hpp"

#include <cstring>

#include "arrays/dtype.hpp"
#include "driver/error.hpp"

namespace py = pybind11;

namespace gg {
namespace {

ArgumentName argument(const char* what) { return {"grouped_mm", what}; }

constexpr GroupedForms ragged_m = bit_of(GroupedForm::ragged_m), ragged_n = bit_of(GroupedForm::ragged_n),
                       ragged_k = bit_of(GroupedForm::ragged_k), stack = bit_of(GroupedForm::stack),
                       fp8_forms = ragged_m | ragged_k | stack;

// Kernels count groups in 32 bits, by blocks, and the rows past the last one are a group too.
constexpr int64_t most_groups = int64_t{1} << 30;

void check_group_count(int64_t groups, const char* what, const char* things) {
  if (groups <= most_groups) return;
  reject(argument(what), "has E=" + std::to_string(groups) + " " + things + ", one call takes up to " +
                             std::to_string(most_groups) + "; split the product");
}

// K of mat_a and of mat_b: of arrays, or by an index.
void check_depths(const GroupedViews& v, GroupedForm form) {
  const bool by_index = form == GroupedForm::ragged_k, of_each = v.b.rank == 3;
  const Tensor no_index{};
  const Tensor &index_a = by_index ? v.index : no_index, &index_b = v.b_index;
  const int64_t of_a = index_a.rank > 0 ? index_a.shape[0] : v.a.shape[v.a.rank - 1];
  const int64_t of_b = index_b.rank > 0 ? index_b.shape[0] : v.b.shape[v.b.rank - 2];
  if (of_a == of_b) return;
  const std::string a = index_a.rank > 0 ? "a_index has " + std::to_string(of_a) + " elements"
                        : v.a.rank == 3  ? "mat_a has K=" + std::to_string(of_a) + " columns in each matrix"
                                         : "mat_a has K=" + std::to_string(of_a) + " columns";
  if (index_b.rank > 0) {
    reject(argument("b_index"), "has " + std::to_string(of_b) + " elements but " + a + "; they need to be equal");
  }
  const bool is_turned = of_each && of_a == v.b.shape[2];
  reject(argument("mat_b"), "has K=" + std::to_string(of_b) + " rows" + (of_each ? " in each matrix" : "") + " but " +
                                a + "; they need to be equal" +
                                (is_turned ? ". A stack of [N, K] goes in as mat_b.mT" : ""));
}

}  // namespace

GroupedForm form_of(const GroupedViews& v) {
  const bool known = (v.a.rank == 2 || v.a.rank == 3) && (v.b.rank == 2 || v.b.rank == 3);
  if (!known) {
    throw ValueError("grouped_mm: mat_a has shape " + shape(v.a) + " and mat_b has shape " + shape(v.b) +
                     "; mat_a [rows, K] and mat_b [E, K, N] are needed, or [E, M, K] and [K, columns], or [M, K] and "
                     "[K, N], each with offs [E], or [E, M, K] and [E, K, N]. Lists of matrices go to group_gemm");
  }
  if (v.b.rank == 3) return v.a.rank == 2 ? GroupedForm::ragged_m : GroupedForm::stack;
  return v.a.rank == 3 ? GroupedForm::ragged_n : GroupedForm::ragged_k;
}

void check_goes_with(bool given, const char* what, GroupedForm form, GroupedForms forms) {
  if (!given || forms & bit_of(form)) return;
  reject(argument(what),
         "goes with " + words_of(forms) + ", and this product is one of " + words_of(form) + "; leave it out");
}

void check_arguments_of(GroupedForm form, const GroupedArguments& given) {
  const auto check = [&](py::handle array, const char* what, GroupedForms forms) {
    check_goes_with(is_given(array), what, form, forms);
  };
  check(given.offs, "offs", ragged_m | ragged_n | ragged_k);
  check(given.bias, "bias", ragged_m | stack);
  check(given.a_index, "a_index", ragged_m | ragged_k);
  check(given.b_index, "b_index", ragged_k);
  check(given.activation, "activation", ragged_m | stack);
  check(given.preactivation, "preactivation", ragged_m);
  check(given.counts, "counts", stack);
  check_goes_with(given.batch_invariant, "batch_invariant", form, ragged_m | ragged_n | stack);
}

void check_has_ends(const GroupedViews& v, GroupedForm form, const GroupedArguments& given) {
  if (form == GroupedForm::stack || !given.offs.is_none()) return;
  const char* what = form == GroupedForm::ragged_m   ? "the row of mat_a"
                     : form == GroupedForm::ragged_n ? "the column of mat_b"
                                                     : "the column of mat_a, and row of mat_b,";
  const std::string groups = form == GroupedForm::ragged_k ? "E" : std::to_string((v.b.rank == 3 ? v.b : v.a).shape[0]);
  throw ValueError("grouped_mm: offs is missing; pass int32 [" + groups + "], " + what +
                   " at which each group ends. Matrices without groups go to group_gemm, as lists");
}

void check_dtypes(const GroupedViews& v, GroupedForm form) {
  check_operand(v.a, argument("mat_a"));
  check_operand(v.b, argument("mat_b"));
  if (v.b.dtype != gg_dtypes[v.a.dtype].of_b) {
    const char* rule = v.a.dtype == GG_E5M2   ? "float8_e5m2 takes a mat_b of float8_e4m3fn: convert mat_b"
                       : v.b.dtype == GG_E5M2 ? "float8_e5m2 goes in as mat_a alone, with a mat_b of float8_e4m3fn"
                       : v.b.dtype == GG_E4M3 ? "both take one dtype: quantize_1x128 makes float8_e4m3fn and its scales"
                                              : "both take one dtype: convert one of them";
    reject_type(argument("mat_b"),
                std::string("has dtype ") + v.b.dtype_name + " beside a mat_a of " + v.a.dtype_name + "; " + rule);
  }
  const GroupedForms forms = v.a.dtype == GG_E5M2 ? ragged_m | ragged_k : fp8_forms;
  if (is_fp8(v.a.dtype) && !(bit_of(form) & forms)) {
    const std::string name = full_name(v.a.dtype);
    reject_type(argument("mat_a"), "has dtype " + name + ", and " + name + " inputs go with " + words_of(forms) +
                                       "; convert both to bfloat16");
  }
}

void check_operands(const GroupedViews& v, GroupedForm form) {
  check_device(v.b, argument("mat_b"), v.a, "mat_a");
  check_depths(v, form);
  if (v.b.rank == 3) check_group_count(v.b.shape[0], "mat_b", "matrices");
  if (v.a.rank == 3) check_group_count(v.a.shape[0], "mat_a", "matrices");
  if (form != GroupedForm::stack || v.a.shape[0] == v.b.shape[0]) return;
  reject(argument("mat_b"), "has E=" + std::to_string(v.b.shape[0]) + " matrices but mat_a has E=" +
                                std::to_string(v.a.shape[0]) + "; they need to be equal");
}

void check_extents(const GroupedViews& v, const Tensor& extents, const char* what, const char* of_each) {
  const ArgumentName named = argument(what);
  if (std::strcmp(extents.dtype_name, "int32") != 0) {
    reject_type(named, std::string("has dtype ") + extents.dtype_name + "; int32 is needed: convert it");
  }
  const bool of_b = v.b.rank == 3, has_stack = of_b || v.a.rank == 3;
  const int64_t groups = has_stack ? (of_b ? v.b : v.a).shape[0] : extents.shape[0];
  if (extents.rank != 1 || extents.shape[0] != groups) {
    const std::string count = has_stack ? std::to_string(groups) : "E";
    const std::string stacks =
        has_stack ? std::string(of_b ? " but mat_b has " : " but mat_a has ") + count + " matrices" : "";
    reject(named, "has shape " + shape(extents) + stacks + "; the " + of_each + " is needed, [" + count + "]");
  }
  if (extents.shape[0] > 1 && extents.stride[0] != 1) {
    reject(named, "has stride " + std::to_string(extents.stride[0]) +
                      "; its elements must lie one behind the other: pass a contiguous copy");
  }
  check_memory(extents, named);
  check_group_count(extents.shape[0], what, "elements");
  check_device(extents, named, v.a, "mat_a");
}

GroupedSizes sizes_of(const GroupedViews& v, GroupedForm form) {
  const int64_t *a = v.a.shape, *b = v.b.shape;
  const int64_t indexed = v.index.rank > 0 ? v.index.shape[0] : -1;
  switch (form) {
    case GroupedForm::ragged_m:
      return {b[0], indexed >= 0 ? indexed : a[0], b[2], a[1]};
    case GroupedForm::ragged_n:
      return {a[0], a[1], b[1], a[2]};
    case GroupedForm::ragged_k:
      return {v.offs.shape[0], a[0], b[1], indexed >= 0 ? indexed : a[1]};
    default:
      return {a[0], a[1], b[2], a[2]};
  }
}

}  // namespace gg
