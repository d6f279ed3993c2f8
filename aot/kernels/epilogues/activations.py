"""The gated activations of aot/spec/abi.py, in Gluon: which one is a value at run time, the same for all threads."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ...spec import abi

_SWIGLU, _GEGLU, _GEGLU_TANH, _SWIGLU_OAI = (
    gl.constexpr(abi.ACTIVATIONS.index(name)) for name in abi.GATED_ACTIVATIONS
)


@gluon.jit
def sigmoid(x):
    """1 / (1 + exp(-x)), to some 2 units in the last place of float32: the operators would scale for denormals."""
    return gl.inline_asm_elementwise(
        "{ .reg .f32 t; mul.f32 t, $1, 0fBFB8AA3B; ex2.approx.ftz.f32 t, t; add.f32 t, t, 0f3F800000; "
        "rcp.approx.ftz.f32 $0, t; }",
        "=f,f",
        [x],
        dtype=gl.float32,
        is_pure=True,
        pack=1,
    )


@gluon.jit
def gelu(x):
    return 0.5 * x * (1.0 + gl.erf(x * 0.7071067811865476))


@gluon.jit
def gelu_tanh(x):
    """0.5 x (1 + tanh y) is x sigmoid(2 y)."""
    return x * sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))


@gluon.jit
def activate(gate, up, kind):
    if kind == _SWIGLU:
        values = gate * sigmoid(gate) * up
    elif kind == _SWIGLU_OAI:
        clamped = gl.minimum(gate, 7.0)
        values = clamped * sigmoid(1.702 * clamped) * (gl.minimum(gl.maximum(up, -7.0), 7.0) + 1.0)
    elif kind == _GEGLU:
        values = gelu(gate) * up
    else:
        values = gelu_tanh(gate) * up
    return values
