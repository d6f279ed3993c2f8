#include "forms/check_activation_gradient.hpp"

#include <cstring>
#include <string>

#include "forms/check_activation.hpp"
#include "forms/overlap.hpp"

namespace py = pybind11;

namespace gg {
namespace {

constexpr const char* function = "activation_gradient";

ArgumentName argument(const char* what) { return {function, what}; }

// z [R, 2 I] of a gated activation, else [R, I]; dh [R, I].
void check_rows_of(const CheckedActivationGradient& c) {
  check_matrix(c.z, argument("z")), check_matrix(c.dh, argument("dh"));
  if (c.z.dtype != GG_FP16 && c.z.dtype != GG_BF16) {
    reject_type(argument("z"),
                std::string("has dtype ") + c.z.dtype_name + "; float16 or bfloat16 is needed: convert it");
  }
  if (c.dh.dtype != c.z.dtype) {
    reject_type(argument("dh"),
                std::string("has dtype ") + c.dh.dtype_name + " but z has " + c.z.dtype_name + "; convert one of them");
  }
  const int64_t halves = c.activation.gated() ? 2 : 1;
  if (c.z.shape[0] != c.dh.shape[0] || c.z.shape[1] != halves * c.dh.shape[1]) {
    reject(argument("z"), "has shape " + shape(c.z) + " but dh has " + shape(c.dh) + "; " +
                              shape(c.dh.shape[0], halves * c.dh.shape[1]) + " is needed" +
                              (halves == 2 ? ", as the activation is gated" : ""));
  }
  check_memory(c.z, argument("z")), check_memory(c.dh, argument("dh"));
  check_device(c.dh, argument("dh"), c.z, "z");
}

void check_int32(const Tensor& t, const char* what, const CheckedActivationGradient& c) {
  if (t.rank == 0) return;
  const ArgumentName name = argument(what);
  if (std::strcmp(t.dtype_name, "int32") != 0) {
    reject_type(name, std::string("has dtype ") + t.dtype_name + "; int32 is needed, as route gives it");
  }
  check_integers(t, name, 1);
  check_device(t, name, c.z, "z");
}

void check_weights(const CheckedActivationGradient& c) {
  check_int32(c.slot, "slot", c), check_int32(c.ends, "ends", c);
  if (c.ends.rank > 0 && c.ends.shape[0] == 0) reject(argument("ends"), "is empty; leave it out where all rows count");
  if (c.slot.rank > 0 && c.slot.shape[0] != c.rows) {
    reject(argument("slot"),
           "has shape " + shape(c.slot) + ", a slot for each of " + std::to_string(c.rows) + " rows is needed");
  }
  for (const auto& [t, what] : {std::pair{&c.weights, "weights"}, std::pair{&c.dweights, "dweights"}}) {
    if (t->rank == 0) continue;
    const ArgumentName name = argument(what);
    if (c.slot.rank == 0) reject(name, "goes with slot, which is missing");
    check_matrix(*t, name);
    check_slot_weights(*t, name, *t, what);
    check_slots(*t, name);
    check_device(*t, name, c.z, "z");
  }
  if (c.weights.rank > 0 && c.dweights.rank > 0)
    check_slot_weights(c.dweights, argument("dweights"), c.weights, "weights");
}

// An output shares memory with nothing else.
void check_outputs(const ActivationGradientArguments& given, const CheckedActivationGradient& c) {
  Gradients recorded;
  const auto check = [&](const Tensor& t, const char* what, py::handle array, const OutputSpec& wanted) {
    if (array.is_none()) return;
    const ArgumentName name = argument(what);
    check_output(t, name, array, wanted, recorded);
    check_device(t, name, c.z, "z");
    for (const auto& [other, other_name] :
         {std::pair{&c.z, "z"}, std::pair{&c.dh, "dh"}, std::pair{&c.weights, "weights"}, std::pair{&c.slot, "slot"},
          std::pair{&c.ends, "ends"}, std::pair{&c.dz, "dz"}, std::pair{&c.h, "h"}}) {
      if (other != &t && other->data != 0) check_separate(t, name, *other, other_name);
    }
  };
  check(c.dz, "dz", given.dz, {c.rows, c.z.shape[1], c.z.dtype, "the gradient of z"});
  check(c.h, "h", given.h, {c.rows, c.columns, c.z.dtype, "the activation of z"});
  check(c.dweights, "dweights", given.dweights,
        {c.dweights.shape[0], c.dweights.shape[1], GG_FP32, "the gradient of weights"});
}

}  // namespace

CheckedActivationGradient check_activation_gradient(const ActivationGradientArguments& arguments,
                                                    const Tensor* product) {
  CheckedActivationGradient c;
  c.activation = read_activation(arguments.activation, arguments.gate_up, arguments.swiglu_limit, function);
  c.z = view_of(arguments.z, argument("z"));
  c.dh = product ? *product : view_of(arguments.dh, argument("dh"));
  c.weights = view_if_given(arguments.weights, argument("weights"));
  c.slot = view_if_given(arguments.slot, argument("slot"));
  c.ends = view_if_given(arguments.ends, argument("ends"));
  c.dz = view_of(arguments.dz, argument("dz"));
  c.h = view_if_given(arguments.h, argument("h"));
  c.dweights = view_if_given(arguments.dweights, argument("dweights"));
  check_rows_of(c);
  c.rows = c.dh.shape[0], c.columns = c.dh.shape[1];
  check_weights(c);
  check_outputs(arguments, c);
  const Tensor& slots = c.weights.rank > 0 ? c.weights : c.dweights;
  c.entries = slots.rank > 0 ? slots.shape[0] * slots.shape[1] : 0;
  c.take(arguments.z, c.z, "z");
  c.dtype = c.out_dtype = c.z.dtype;
  return c;
}

}  // namespace gg
