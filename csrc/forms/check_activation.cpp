#include "forms/check_activation.hpp"

#include <string>

#include "forms/checks.hpp"

namespace py = pybind11;

namespace gg {
namespace {

// The place of a word among `names`, of which the first `skipped` are not for callers.
int place_of(py::handle word, const ArgumentName& argument, const char* const* names, int count, int skipped,
             const char* otherwise) {
  std::string known;
  for (int i = skipped; i < count; i++) known += (i > skipped ? ", " : "") + std::string(names[i]);
  if (!PyUnicode_Check(word.ptr())) {
    reject_type(argument, std::string("is a ") + Py_TYPE(word.ptr())->tp_name + "; pass one of " + known + otherwise);
  }
  for (int i = skipped; i < count; i++) {
    if (PyUnicode_CompareWithASCIIString(word.ptr(), names[i]) == 0) return i;
  }
  reject(argument, "is " + py::repr(word).cast<std::string>() + "; pass one of " + known + otherwise);
}

}  // namespace

Activation read_activation(py::handle activation, py::handle gate_up, const char* function) {
  Activation read;
  if (activation && !activation.is_none()) {
    read.kind = static_cast<gg_activation>(place_of(activation, {function, "activation"}, gg_activation_names,
                                                    GG_ACTIVATION_COUNT, 1, ", or None for the sums as they are"));
  }
  if (gate_up && !gate_up.is_none() &&
      (!PyUnicode_Check(gate_up.ptr()) ||
       PyUnicode_CompareWithASCIIString(gate_up.ptr(), gg_gate_order_names[0]) != 0)) {
    read.order = static_cast<gg_gate_order>(
        place_of(gate_up, {function, "gate_up"}, gg_gate_order_names, GG_GATE_ORDER_COUNT, 0, ""));
  }
  return read;
}

}  // namespace gg
