"""Activations of float32 values, chosen by a number that all programs of a launch share.

The numbers are the places in ACTIVATIONS and GATE_ORDERS of aot/spec/abi.py; tests/cpu/test_activations.py compares
them. A branch on such a number costs nothing beside memory, so one kernel serves all.
"""

import triton
import triton.language as tl

SWIGLU, GEGLU, GEGLU_TANH, SWIGLU_OAI, SILU, GELU, GELU_TANH, RELU, RELU2 = (tl.constexpr(i) for i in range(1, 10))
GATE_FIRST, UP_FIRST, INTERLEAVED = (tl.constexpr(i) for i in range(3))

SQRT_HALF = tl.constexpr(0.7071067811865476)
SQRT_8_OVER_PI = tl.constexpr(1.5957691216057308)  # twice the sqrt(2 / pi) of gelu's tanh form
OAI_SCALE = tl.constexpr(1.702)  # of gpt-oss


@triton.jit
def is_gated(activation):
    return (activation >= SWIGLU) & (activation <= SWIGLU_OAI)


@triton.jit
def _logistic(x):
    """1 / (1 + exp(-x)), with an error of a few units in the last place, in a third of a division's instructions."""
    return tl.inline_asm_elementwise(
        "{ .reg .f32 e; mul.f32 e, $1, 0fBFB8AA3B; ex2.approx.ftz.f32 e, e; add.f32 e, e, 0f3F800000; "  # -log2(e)
        "rcp.approx.ftz.f32 $0, e; }",
        "=f,f",
        [x],
        dtype=tl.float32,
        is_pure=True,
        pack=1,
    )


@triton.jit
def limited(gate, up, limit):
    """Gate and up of a gated activation, gate at most `limit` and up in [-limit, limit]. NaN stays NaN."""
    if limit < float("inf"):
        gate = tl.minimum(gate, limit, propagate_nan=tl.PropagateNan.ALL)
        up = tl.minimum(up, limit, propagate_nan=tl.PropagateNan.ALL)
        up = tl.maximum(up, -limit, propagate_nan=tl.PropagateNan.ALL)
    return gate, up


@triton.jit
def apply_activation(gate, up, activation, limit_bits, FAST: tl.constexpr = False):
    """f(gate) * up for the gated ones, f(gate) for the others, which do not look at `up`. NaN stays NaN. limit_bits: of
    a float32 that gate and up are limited to first, infinity where they are not. FAST: for values that are rounded to
    few bits."""
    gate, up = limited(gate, up, tl.cast(limit_bits, tl.float32, bitcast=True))
    if (activation == RELU) | (activation == RELU2):
        value = tl.where(gate < 0, 0.0, gate)
        if activation == RELU2:
            value = value * value
    elif (activation == GEGLU) | (activation == GELU):
        value = 0.5 * gate * (1.0 + tl.math.erf(gate * SQRT_HALF))
    else:
        value, argument = gate, gate
        if (activation == GEGLU_TANH) | (activation == GELU_TANH):
            # (1 + tanh(x)) / 2 is the logistic function of 2x.
            argument = SQRT_8_OVER_PI * (gate + 0.044715 * gate * gate * gate)
        elif activation == SWIGLU_OAI:
            argument = OAI_SCALE * gate
            up += 1.0
        if FAST:
            value *= _logistic(argument)
        else:
            value = value / (1.0 + tl.exp(-argument))
    if is_gated(activation):
        value = value * up
    return value
