"""Derivatives of the activations in activation.py, of float32 values. A file of its own, so that no product is compiled
anew for a change here."""

import triton
import triton.language as tl

from .activation import (
    GEGLU,
    GEGLU_TANH,
    GELU,
    GELU_TANH,
    OAI_SCALE,
    RELU,
    RELU2,
    SQRT_8_OVER_PI,
    SQRT_HALF,
    SWIGLU_OAI,
    is_gated,
    limited,
)

NONE = tl.constexpr(0)
ONE_OVER_SQRT_2PI = tl.constexpr(0.3989422804014327)


@triton.jit
def activation_and_slopes(gate, up, activation, limit_bits):
    """(value, its derivative by gate, by up): what apply_activation gives, and NONE, which is `gate` itself.

    Past a limit a derivative is 0, as torch's clamp has it. The derivative by up means nothing where the activation is
    not gated.
    """
    limit = tl.cast(limit_bits, tl.float32, bitcast=True)
    given_gate, given_up = gate, up
    gate, up = limited(gate, up, limit)
    value = gate
    if activation == NONE:
        slope = tl.full(gate.shape, 1.0, tl.float32)
    elif (activation == RELU) | (activation == RELU2):
        value = tl.where(gate < 0, 0.0, gate)
        slope = tl.where(gate <= 0, 0.0, 1.0)
        if activation == RELU2:
            slope = 2.0 * value
            value = value * value
    elif (activation == GEGLU) | (activation == GELU):
        share = 0.5 * (1.0 + tl.math.erf(gate * SQRT_HALF))
        value = gate * share
        slope = share + gate * (ONE_OVER_SQRT_2PI * tl.exp(-0.5 * gate * gate))
    else:
        argument, rate = gate, tl.full(gate.shape, 1.0, tl.float32)
        if (activation == GEGLU_TANH) | (activation == GELU_TANH):
            square = gate * gate
            argument = SQRT_8_OVER_PI * (gate + 0.044715 * square * gate)
            rate = SQRT_8_OVER_PI * (1.0 + 3.0 * 0.044715 * square)
        elif activation == SWIGLU_OAI:
            argument = OAI_SCALE * gate
            rate = OAI_SCALE * rate
        share = 1.0 / (1.0 + tl.exp(-argument))
        bend = value * share * (1.0 - share)
        slope = share + tl.where(bend == 0, 0.0, bend * rate)  # where `rate` is infinite, the curve is straight
        value = value * share
        if activation == SWIGLU_OAI:
            up += 1.0
    by_up = value
    if is_gated(activation):
        value = value * up
        slope = slope * up
    if limit < float("inf"):
        slope = tl.where(given_gate <= limit, slope, 0.0)
        by_up = tl.where((given_up >= -limit) & (given_up <= limit), by_up, 0.0)
    return value, slope, by_up
