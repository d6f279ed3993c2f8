"""The gated activations for tiles in registers, as aot/kernels/activation.py has them for rows: which one is a value at
run time, the same for all threads.
"""

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ..activation import GEGLU, OAI_SCALE, SQRT_8_OVER_PI, SQRT_HALF, SWIGLU, SWIGLU_OAI
from ..hopper.record import word
from ..records import gated_descriptors


@gluon.constexpr_function
def sigmoid_in_ptx(x, y):
    """The PTX of y = 1 / (1 + exp(-x)), to some 2 units in the last place of float32."""
    return (
        f"mul.f32 {y}, {x}, 0fBFB8AA3B; ex2.approx.ftz.f32 {y}, {y}; add.f32 {y}, {y}, 0f3F800000; "
        f"rcp.approx.ftz.f32 {y}, {y};"
    )


@gluon.jit
def sigmoid(x):
    """1 / (1 + exp(-x)). The operators would scale for denormals."""
    return gl.inline_asm_elementwise(sigmoid_in_ptx("$1", "$0"), "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def gelu(x):
    return 0.5 * x * (1.0 + gl.erf(x * SQRT_HALF))


@gluon.jit
def gelu_tanh(x):
    """0.5 x (1 + tanh y) is x sigmoid(2 y)."""
    return x * sigmoid(SQRT_8_OVER_PI * (x + 0.044715 * x * x * x))


@gluon.jit
def limited(record, gate, up):
    """(kind, gate, up): which activation the product has, gate at most its limit, and up within it. NaN stays NaN."""
    activation = word(record + gated_descriptors.activation)
    limit = (activation >> 32).to(gl.int32).to(gl.float32, bitcast=True)
    if limit < float("inf"):
        gate = gl.minimum(gate, limit, propagate_nan=tl.PropagateNan.ALL)
        up = gl.minimum(up, limit, propagate_nan=tl.PropagateNan.ALL)
        up = gl.maximum(up, -limit, propagate_nan=tl.PropagateNan.ALL)
    return activation.to(gl.int32), gate, up


@gluon.jit
def activate(record, gate, up):
    kind, gate, up = limited(record, gate, up)
    if kind == SWIGLU:
        values = gate * sigmoid(gate) * up
    elif kind == SWIGLU_OAI:
        values = gate * sigmoid(OAI_SCALE * gate) * (up + 1.0)
    elif kind == GEGLU:
        values = gelu(gate) * up
    else:
        values = gelu_tanh(gate) * up
    return values
