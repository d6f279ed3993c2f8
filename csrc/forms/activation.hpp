// What becomes of the sums of a product, besides scales and bias.
#pragma once

#include <cstdint>
#include <limits>

#include "abi/artifact.h"
#include "forms/problem_record.hpp"

namespace gg {

constexpr float no_limit = std::numeric_limits<float>::infinity();

// A gated activation takes two columns of B for one of C: gate, which is at most `limit`, and up, which is in
// [-limit, limit].
struct Activation {
  gg_activation kind = GG_ACTIVATION_NONE;
  gg_gate_order order = GG_GATE_FIRST;  // of a gated one
  float limit = no_limit;
  uint64_t kept = 0;     // pre-activation [M, N] of the outputs' dtype, columns in B's order, or 0
  int64_t kept_row = 0;  // its rows are contiguous

  bool gated() const { return kind >= GG_ACTIVATION_SWIGLU && kind <= GG_ACTIVATION_SWIGLU_OAI; }
  // Whether a kernel could do it and quantize what it gives. `columns`: of gate and up, each of whole blocks, so that
  // no block of B's scales has columns of both.
  bool quantizable(int64_t columns) const {
    return gated() && order != GG_INTERLEAVED && kind != GG_ACTIVATION_GEGLU && kept == 0 && columns % 256 == 0;
  }
  // Whether a kernel with a gated epilogue could do it: what is kept is stored as halves, and not with erf.
  bool fusible() const { return gated() && (kept == 0 || (order != GG_INTERLEAVED && kind != GG_ACTIVATION_GEGLU)); }
  // As records have it.
  int64_t word() const { return int64_t{bits_of(limit)} << 32 | kind; }
};

// As the kernels have it that only activate.
inline void set_activation(gg_arguments& arguments, const Activation& activation) {
  arguments.activation = activation.kind, arguments.gate_order = activation.order;
  arguments.limit_bits = bits_of(activation.limit);
}

}  // namespace gg
