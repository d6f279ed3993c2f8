#include "forms/check_activation.hpp"

#include <string>

#include "forms/checks.hpp"

namespace py = pybind11;

namespace gg {
namespace {

// Words that an argument may be: names[first] to names[end - 1], or what `otherwise` says.
struct Words {
  const char* const* names;
  int first, end;
  const char* otherwise;

  std::string listed() const {
    std::string known;
    for (int i = first; i < end; i++) known += (i > first ? ", " : "") + std::string(names[i]);
    return known + otherwise;
  }
};

// The place of a word among the names.
int place_of(py::handle word, const ArgumentName& argument, const Words& words) {
  if (!PyUnicode_Check(word.ptr())) {
    reject_type(argument, "is " + kind_of(word) + "; pass one of " + words.listed());
  }
  for (int i = words.first; i < words.end; i++) {
    if (PyUnicode_CompareWithASCIIString(word.ptr(), words.names[i]) == 0) return i;
  }
  reject(argument, "is " + py::repr(word).cast<std::string>() + "; pass one of " + words.listed());
}

float read_limit(py::handle given, const ArgumentName& argument, gg_activation kind) {
  if (kind != GG_ACTIVATION_SWIGLU && kind != GG_ACTIVATION_SWIGLU_OAI) {
    const std::string word = kind == GG_ACTIVATION_NONE ? "None" : std::string("'") + gg_activation_names[kind] + "'";
    reject(argument,
           "goes with activation='swiglu' and 'swiglu_oai', and the activation is " + word + "; leave it out");
  }
  const auto limit = static_cast<float>(number(argument, given));
  if (!(limit > 0)) {
    reject(argument, "is " + py::repr(given).cast<std::string>() +
                         ", and gate and up need a limit above 0; pass float('inf') for none");
  }
  return limit;
}

}  // namespace

Activation read_activation(py::handle activation, py::handle gate_up, py::handle swiglu_limit, const char* function) {
  constexpr float limit_of_gpt_oss = 7;
  Activation read;
  if (is_given(activation)) {
    const Words known{gg_activation_names, 1, GG_ACTIVATION_COUNT, ", or None for the sums as they are"};
    read.kind = static_cast<gg_activation>(place_of(activation, {function, "activation"}, known));
    if (read.kind == GG_ACTIVATION_SWIGLU_OAI) read.limit = limit_of_gpt_oss;
  }
  if (is_given(gate_up)) {
    const Words known{gg_gate_order_names, 0, GG_GATE_ORDER_COUNT, ""};
    read.order = static_cast<gg_gate_order>(place_of(gate_up, {function, "gate_up"}, known));
  }
  if (is_given(swiglu_limit)) read.limit = read_limit(swiglu_limit, {function, "swiglu_limit"}, read.kind);
  return read;
}

}  // namespace gg
