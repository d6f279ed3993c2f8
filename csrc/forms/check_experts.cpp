#include "forms/check_experts.hpp"

#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>

#include "arrays/dtype.hpp"
#include "driver/error.hpp"
#include "forms/check_activation.hpp"
#include "forms/check_routing.hpp"
#include "forms/guarantees.hpp"
#include "forms/overlap.hpp"

namespace py = pybind11;

namespace gg {
namespace {

constexpr const char* function = "fused_experts";

ArgumentName argument(const char* what) { return {function, what}; }

// 0 for None.
int64_t rows_limit(const char* caller, py::handle given, int64_t top_k) {
  if (given.is_none()) return 0;
  if (!PyIndex_Check(given.ptr())) {
    throw TypeError(std::string(caller) + ": max_rows is " + kind_of(given) +
                    "; a number of rows is needed, or None for all");
  }
  const int64_t rows = integer({caller, "max_rows"}, given);
  if (rows >= std::max<int64_t>(top_k, 1)) return rows;
  throw ValueError(std::string(caller) + ": max_rows is " + std::to_string(rows) + ", a token takes k=" +
                   std::to_string(top_k) + " rows; pass at least as many, or None for all rows at once");
}

void check_weights(const Tensor& t, const ArgumentName& name, const CheckedExperts& c) {
  if (t.rank != 3) {
    reject(name, "has shape " + shape(t) + "; a matrix for each expert is needed, [E, rows, columns]");
  }
  if (t.dtype != c.x.dtype && t.dtype != GG_E4M3) {
    reject_type(name, std::string("has dtype ") + t.dtype_name + " but x has " + c.x.dtype_name +
                          "; all take one dtype, convert one of them, or pass w1 and w2 in float8_e4m3fn, with scales");
  }
  if (t.dtype != c.w1.dtype) {
    reject_type(name, std::string("has dtype ") + t.dtype_name + " but w1 has " + c.w1.dtype_name +
                          "; both take one dtype, convert one of them");
  }
  check_memory(t, name);
  check_device(t, name, c.x, "x");
}

// Of e4m3 weights [E, K, N]: [E, N / 128, K / 128], rounded up, as those of [E, N, K] lie in checkpoints.
void check_weight_scale(const Tensor& scale, const char* what, const Tensor& w, const char* w_name, const Tensor& x) {
  const ArgumentName name = argument(what);
  const int64_t n_blocks = ceil_div(w.shape[2], scale_block), k_blocks = ceil_div(w.shape[1], scale_block);
  const std::string needed = "float32 [" + std::to_string(w.shape[0]) + ", " + std::to_string(n_blocks) + ", " +
                             std::to_string(k_blocks) + "] is needed, a scale for each 128x128 of " + w_name +
                             ": of its columns, then of its rows";
  if (scale.rank == 0 && w.dtype != GG_E4M3) return;
  if (scale.rank == 0) reject(name, std::string("is missing, and ") + w_name + " is float8_e4m3fn; " + needed);
  if (w.dtype != GG_E4M3) {
    reject(name, std::string("is given, but ") + w_name + " is " + full_name(w.dtype) +
                     ": scales are for float8_e4m3fn; leave it out");
  }
  check_scale_array(scale, name, w.dtype);
  if (scale.rank != 3 || scale.shape[0] != w.shape[0] || scale.shape[1] != n_blocks || scale.shape[2] != k_blocks) {
    reject(name, "has shape " + shape(scale) + "; " + needed);
  }
  check_device(scale, name, x, "x");
}

void check_experts_of(const CheckedExperts& c) {
  const int64_t experts = c.w1.shape[0];
  if (experts < 1 || experts > most_experts) {
    reject(argument("w1"), "has E=" + std::to_string(experts) + " matrices, 1 to " + std::to_string(most_experts) +
                               " experts are possible");
  }
  if (c.w2.shape[0] == experts) return;
  reject(argument("w2"), "has E=" + std::to_string(c.w2.shape[0]) + " matrices but w1 has " + std::to_string(experts) +
                             "; they need to be equal");
}

const char* advice_if(bool it_helps, const char* advice) { return it_helps ? advice : ""; }

// w1 [E, H, 2 I or I], w2 [E, I, H].
void check_factors(const CheckedExperts& c) {
  check_weights(c.w1, argument("w1"), c);
  check_weights(c.w2, argument("w2"), c);
  check_experts_of(c);
  const int64_t hidden = c.x.shape[1], columns = c.w1.shape[2];
  if (c.w1.shape[1] != hidden) {
    reject(argument("w1"), "has " + std::to_string(c.w1.shape[1]) + " rows in each matrix but x has H=" +
                               std::to_string(hidden) + " columns; they need to be equal" +
                               advice_if(columns == hidden, ". A stack of [2 I, H] goes in as w1.mT"));
  }
  const bool gated = c.activation.gated();
  if (gated && columns % 2 != 0) {
    reject(argument("w1"), "has " + std::to_string(columns) +
                               " columns in each matrix, and the activation is gated: "
                               "it takes gate and up, as many of each");
  }
  const int64_t intermediate = gated ? columns / 2 : columns;
  if (c.w2.shape[1] != intermediate || c.w2.shape[2] != hidden) {
    const bool is_turned = c.w2.shape[1] == hidden && c.w2.shape[2] == intermediate;
    const bool has_gate = !gated && columns == 2 * c.w2.shape[1], has_none = gated && columns == c.w2.shape[1];
    reject(argument("w2"),
           "has shape " + shape(c.w2) + "; [" + std::to_string(c.w1.shape[0]) + ", " + std::to_string(intermediate) +
               ", " + std::to_string(hidden) + "] is needed: [E, I, H]" +
               (gated ? ", where w1 has 2 I columns" : ", where w1 has I columns") +
               advice_if(is_turned, ". A stack of [H, I] goes in as w2.mT") +
               advice_if(has_gate,
                         ". w1 has twice as many columns as w2 has rows: where they are gate and up, pass "
                         "activation='swiglu', of silu, or 'geglu', of gelu") +
               advice_if(has_none,
                         ". w1 has as many columns as w2 has rows: where there is no gate, pass "
                         "activation='silu', 'gelu' or another without one"));
  }
}

void check_bias(const Tensor& t, const char* what, const CheckedExperts& c, int64_t columns) {
  if (t.rank == 0) return;
  const ArgumentName name = argument(what);
  if (t.dtype != c.x.dtype) {
    reject_type(name, std::string("has dtype ") + t.dtype_name + "; that of x, " + full_name(c.x.dtype) +
                          ", is needed: convert it");
  }
  check_memory(t, name);
  if (t.rank != 2 || t.shape[0] != c.w1.shape[0] || t.shape[1] != columns) {
    reject(name, "has shape " + shape(t) + "; " + shape(c.w1.shape[0], columns) +
                     " is needed: a row for each expert; expand one that is for all");
  }
  check_device(t, name, c.x, "x");
}

void check_routing(const CheckedExperts& c) {
  const ArgumentName ids = argument("topk_ids"), map = argument("expert_map");
  check_integers(c.ids, ids, 2);
  check_slots(c.ids, ids);
  if (c.ids.shape[0] != c.x.shape[0]) {
    reject(ids, "has shape " + shape(c.ids) + " but x has " + std::to_string(c.x.shape[0]) +
                    " tokens; [tokens, k] is needed");
  }
  check_device(c.ids, ids, c.x, "x");
  check_slot_weights(c.weights, argument("topk_weights"), c.ids, "topk_ids");
  if (c.expert_map.rank == 0) return;
  check_integers(c.expert_map, map, 1);
  check_device(c.expert_map, map, c.x, "x");
}

void check_like_x(const Tensor& t, const char* what, const CheckedExperts& c) {
  const ArgumentName name = argument(what);
  check_rows(t, name);
  if (t.dtype != c.x.dtype) {
    reject_type(name,
                std::string("has dtype ") + t.dtype_name + " but x has " + c.x.dtype_name + "; convert one of them");
  }
  if (t.shape[0] != c.x.shape[0] || t.shape[1] != c.x.shape[1]) {
    reject(name, "has shape " + shape(t) + " but x has " + shape(c.x) + "; they need to be equal");
  }
  check_device(t, name, c.x, "x");
}

// Calls `check` with each array that is read, and its name.
template <typename Check>
void for_inputs(const CheckedExperts& c, const Check& check) {
  check(c.x, "x"), check(c.w1, "w1"), check(c.w2, "w2");
  check(c.weights, "topk_weights"), check(c.ids, "topk_ids");
  check(c.b1, "b1"), check(c.b2, "b2"), check(c.expert_map, "expert_map");
  check(c.w1_scale, "w1_scale"), check(c.w2_scale, "w2_scale");
}

void check_out(CheckedExperts& c, py::handle given) {
  const ArgumentName out = argument("out");
  c.out_view = view_of(given, out);
  check_output(c.out_view, out, given, {c.x.shape[0], c.x.shape[1], c.x.dtype, "the layer's output"}, c.recorded);
  check_like_x(c.out_view, "out", c);
  c.out = py::reinterpret_borrow<py::object>(given);
}

// Of an array's own dtype, whatever it is: "uint8" has 8 bits. 0 where the name does not tell whole bytes.
int64_t element_bytes_of(const Tensor& t) {
  if (std::strcmp(t.dtype_name, "uint8") == 0 || std::strcmp(t.dtype_name, "bool") == 0) return 1;
  const char* digits = std::strpbrk(t.dtype_name, "0123456789");
  const long bits = digits ? std::strtol(digits, nullptr, 10) : 0;
  return bits % 8 == 0 ? bits / 8 : 0;
}

// Bytes of a contiguous array, which one of a few bytes an element may have past 2^31 elements. -1 where it has gaps.
int64_t contiguous_bytes(const Tensor& t) {
  int64_t step = 1;
  for (int d = std::min(t.rank, 3) - 1; d >= 0; d--) {
    if (t.shape[d] > 1 && t.stride[d] != step) return -1;
    if (__builtin_mul_overflow(step, t.shape[d], &step)) return -1;
  }
  return t.rank > 3 || __builtin_mul_overflow(step, element_bytes_of(t), &step) ? -1 : step;
}

void check_workspace(CheckedExperts& c, py::handle given) {
  const ArgumentName name = argument("workspace");
  const Tensor& t = c.workspace = view_of(given, name);
  check_device(t, name, c.x, "x");
  if (t.read_only) reject(name, "is read-only; pass memory that may be written");
  if (framework_of(given, "workspace", -1).immutable()) {
    reject(name, "is of a framework whose arrays never change; leave it out, and memory is allocated");
  }
  if (c.recorded(given, "workspace", -1)) reject(name, "requires grad and would be written; pass workspace.detach()");
  const int64_t bytes = contiguous_bytes(t);
  if (bytes < 0 || element_bytes_of(t) == 0) {
    reject(name, "has shape " + shape(t) + " and dtype " + t.dtype_name +
                     "; memory in one piece is needed: a contiguous uint8 array of one dimension");
  }
  if (static_cast<size_t>(bytes) < c.memory.bytes) {
    reject(name, "has " + std::to_string(bytes) + " bytes, this call needs " + std::to_string(c.memory.bytes) +
                     ": as many as fused_experts_workspace says; pass more, or a smaller max_rows");
  }
  // The CPU computes elsewhere, and its allocators align to less.
  if (t.data % workspace_alignment != 0 && c.memory.bytes > 0 && t.device_type != DeviceType::cpu) {
    reject(name, "is at an address that is no multiple of " + std::to_string(workspace_alignment) +
                     " bytes, which kernels need; pass a new array, or a slice that starts at one");
  }
}

// Memory of an array; none where it has no elements.
Extent memory_of_array(const Tensor& t) { return t.rank == 0 || is_empty(t) ? Extent{0, 0} : extent(t); }

bool meet(const Extent& x, const Extent& y) { return x.low < y.high && y.low < x.high; }

// What is written, the output and the workspace, has no memory of another array. `add` may be the output itself: each
// element is read before it is written.
void check_overlaps(const CheckedExperts& c) {
  const Extent out = memory_of_array(c.out_view);
  const bool has_workspace = c.workspace.rank > 0 && c.memory.bytes > 0;
  const Extent workspace = has_workspace ? Extent{c.workspace.data, c.workspace.data + c.memory.bytes} : Extent{0, 0};
  const auto check = [&](const Extent& memory, const char* what) {
    if (!meet(memory, workspace)) return;
    reject(argument("workspace"), std::string("shares memory with ") + what + "; pass memory of its own");
  };
  const auto check_read = [&](const Tensor& read, const char* what) {
    const Extent memory = memory_of_array(read);
    if (meet(memory, out)) check_separate(c.out_view, argument("out"), read, what);
    check(memory, what);
  };
  for_inputs(c, check_read);
  if (same_places(c.added, c.out_view)) check(memory_of_array(c.added), "add");
  else check_read(c.added, "add");
  check(out, "out");
}

void view_all(CheckedExperts& c, const ExpertsArguments& arguments) {
  c.x = view_of(arguments.x, argument("x"));
  check_rows(c.x, argument("x"));
  c.w1 = view_of(arguments.w1, argument("w1"));
  c.w2 = view_of(arguments.w2, argument("w2"));
  c.weights = view_of(arguments.topk_weights, argument("topk_weights"));
  c.ids = view_of(arguments.topk_ids, argument("topk_ids"));
  c.b1 = view_if_given(arguments.b1, argument("b1"));
  c.b2 = view_if_given(arguments.b2, argument("b2"));
  c.expert_map = view_if_given(arguments.expert_map, argument("expert_map"));
  c.added = view_if_given(arguments.add, argument("add"));
  c.w1_scale = view_if_given(arguments.w1_scale, argument("w1_scale"));
  c.w2_scale = view_if_given(arguments.w2_scale, argument("w2_scale"));
}

ExpertsSizes sizes_of(const CheckedExperts& c) {
  return {c.x.shape[0],  c.ids.shape[1], c.w1.shape[0],        c.x.shape[1],
          c.w1.shape[2], c.w2.shape[1],  c.w1.dtype == GG_E4M3};
}

// The memory of the calls that each take one chunk.
ExpertsMemory memory_of(ExpertsSizes sizes, int64_t chunk, const char* caller) {
  sizes.tokens = chunk;
  return experts_memory(sizes, caller);
}

}  // namespace

CheckedExperts check_experts(const ExpertsArguments& arguments) {
  CheckedExperts c;
  c.activation = read_activation(arguments.activation, arguments.gate_up, arguments.swiglu_limit, function);
  view_all(c, arguments);
  check_factors(c);
  check_weight_scale(c.w1_scale, "w1_scale", c.w1, "w1", c.x);
  check_weight_scale(c.w2_scale, "w2_scale", c.w2, "w2", c.x);
  check_routing(c);
  check_bias(c.b1, "b1", c, c.w1.shape[2]);
  check_bias(c.b2, "b2", c, c.x.shape[1]);
  if (c.added.rank > 0) check_like_x(c.added, "add", c);
  c.sizes = sizes_of(c);
  c.chunk = tokens_at_once(c.sizes, rows_limit(function, arguments.max_rows, c.sizes.top_k));
  c.memory = memory_of(c.sizes, c.chunk, function);
  if (!arguments.out.is_none()) check_out(c, arguments.out);
  if (!arguments.workspace.is_none()) check_workspace(c, arguments.workspace);
  check_overlaps(c);
  c.take(arguments.x, c.x, "x");
  c.dtype = c.out_dtype = c.x.dtype;
  c.weights_on_input = arguments.weights_on_input, c.batch_invariant = arguments.batch_invariant;
  c.scale = arguments.scale;
  return c;
}

namespace {

// `visit(array, name)` of each argument that may have a gradient, until one of them gives true.
template <typename Visit>
bool any_input(const ExpertsArguments& given, const Visit& visit) {
  return visit(given.x, "x") || visit(given.w1, "w1") || visit(given.w2, "w2") ||
         visit(given.topk_weights, "topk_weights") || visit(given.b1, "b1") || visit(given.b2, "b2") ||
         visit(given.add, "add") || visit(given.w1_scale, "w1_scale") || visit(given.w2_scale, "w2_scale");
}

}  // namespace

void check_gradients(const ExpertsArguments& arguments, const CheckedExperts& layer, const char* caller) {
  GradientCheck check(caller, layer.recorded);
  any_input(arguments, [&](py::handle array, const char* what) {
    check(array, what);
    return false;
  });
}

bool needs_framework(const ExpertsArguments& arguments) {
  Gradients look;
  const auto needs = [&](py::handle array, const char* what) { return look.needs_framework(array, what); };
  return named_by(function, [&] { return any_input(arguments, needs); });
}

bool any_stands_for_others(const ExpertsArguments& arguments) {
  return any_input(arguments, [](py::handle array, const char* what) {
    return !array.is_none() && stands_for_others(array, {function, what});
  });
}

size_t workspace_bytes(const WorkspaceArguments& arguments) {
  constexpr const char* caller = "fused_experts_workspace";
  constexpr int64_t limit = std::numeric_limits<int32_t>::max();
  const auto check = [&](const char* what, int64_t size, int64_t least, int64_t most) {
    if (size >= least && size <= most) return;
    throw ValueError(std::string(caller) + ": " + what + " is " + std::to_string(size) + ", " + std::to_string(least) +
                     " to " + std::to_string(most) + " are possible");
  };
  const int64_t halves = read_activation(arguments.activation, {}, {}, caller).gated() ? 2 : 1;
  check("tokens", arguments.tokens, 0, limit);
  check("top_k", arguments.top_k, 0, limit);
  check("experts", arguments.experts, 1, most_experts);
  check("hidden", arguments.hidden, 0, limit);
  check("intermediate", arguments.intermediate, 0, limit / halves);
  check("tokens * top_k", arguments.tokens * arguments.top_k, 0, limit);
  const ExpertsSizes sizes{
      arguments.tokens,       arguments.top_k,    arguments.experts, arguments.hidden, arguments.intermediate * halves,
      arguments.intermediate, arguments.quantized};
  return memory_of(sizes, tokens_at_once(sizes, rows_limit(caller, arguments.max_rows, arguments.top_k)), caller).bytes;
}

}  // namespace gg
