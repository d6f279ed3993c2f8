"""Gated activations and their derivatives for a part of a tile, as aot/kernels/activation_slopes.py has them for rows.

The activations are one formula with other numbers, so that nothing branches: with the values of several branches in
registers at once a thread would spill. `geglu` has erf and is not among them.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ..activation import GEGLU_TANH, OAI_LIMIT, OAI_SCALE, SQRT_8_OVER_PI, SWIGLU_OAI

PART = gl.constexpr(64)  # rows, and columns
_NO_LIMIT = gl.constexpr(float("inf"))


@gluon.aggregate
class Curve:
    """value(g, u) = v sigmoid(linear v + cubic v^3) (w + shift): v is g, at most `limit`, and w is u, within it."""

    linear: gl.tensor
    cubic: gl.tensor
    limit: gl.tensor
    shift: gl.tensor


@gluon.jit
def make_curve(kind):
    is_oai, is_tanh = kind == SWIGLU_OAI, kind == GEGLU_TANH
    linear = gl.where(is_oai, OAI_SCALE, gl.where(is_tanh, SQRT_8_OVER_PI, 1.0))
    cubic = gl.where(is_tanh, 0.044715 * SQRT_8_OVER_PI, 0.0)
    return Curve(linear, cubic, gl.where(is_oai, OAI_LIMIT, _NO_LIMIT), gl.where(is_oai, 1.0, 0.0))


@gluon.constexpr_function
def _back(TYPE):
    """The PTX of two neighbours. Operands: the value times dh of both; gate and up, both in a word each; then of both
    each dh, the weight, the fields of Curve and where the words go: the first buffer and three offsets in it.

    It is one piece, so that an element is done before the next one begins: operator by operator, as the compiler
    would have it, what is between them would spill. The sigmoid is that of activations.py. `min.NaN` keeps NaN.
    """
    element = """
        cvt.f32.{TYPE} g, gate{i}; cvt.f32.{TYPE} u, up{i};
        min.NaN.f32 v, g, {limit}; abs.f32 t, v; min.NaN.f32 t, t, 0f4E6E6B28; mul.f32 t, t, t;
        fma.rn.f32 rate, {cubic}, t, {linear}; mul.f32 e, v, rate; mul.f32 e, e, 0fBFB8AA3B; ex2.approx.ftz.f32 e, e;
        add.f32 e, e, 0f3F800000; rcp.approx.ftz.f32 share, e;
        mul.f32 t, t, {cubic}; fma.rn.f32 rate, t, 0f40000000, rate;
        mul.f32 by_up, v, share; mul.f32 t, by_up, rate; neg.f32 e, t; fma.rn.f32 t, e, share, t;
        add.f32 slope, share, t; setp.gt.f32 past, g, {limit}; selp.f32 slope, 0f00000000, slope, past;
        neg.f32 e, {limit}; min.NaN.f32 t, u, {limit}; max.NaN.f32 t, t, e; add.f32 t, t, {shift};
        mul.f32 value, by_up, t; mul.f32 slope, slope, t;
        abs.f32 e, u; setp.gt.f32 past, e, {limit}; selp.f32 by_up, 0f00000000, by_up, past;
        mul.f32 {sum}, value, {dh}; mul.f32 e, {dh}, {weight};
        mul.f32 h{i}, value, {weight}; mul.f32 of_gate{i}, e, slope; mul.f32 of_up{i}, e, by_up;
    """
    both = "".join(
        element.format(
            TYPE=TYPE,
            i=i,
            sum=f"${i}",
            dh=f"${4 + i}",
            weight=f"${6 + i}",
            linear=f"${8 + i}",
            cubic=f"${10 + i}",
            limit=f"${12 + i}",
            shift=f"${14 + i}",
        )
        for i in range(2)
    )
    stores = "".join(
        f"cvt.rn.{TYPE}x2.f32 word, {name}1, {name}0; st.shared.b32 [at+{offset}], word; "
        for name, offset in (("of_gate", 0), ("of_up", 8192), ("h", 16384))
    )
    return (
        "{ .reg .b16 gate0, gate1, up0, up1; .reg .b32 at, word; .reg .pred past; .reg .f32 g, u, v, t, e, rate, "
        "share, by_up, slope, value, h0, h1, of_gate0, of_gate1, of_up0, of_up1; mov.b32 {gate0, gate1}, $2; "
        "mov.b32 {up0, up1}, $3; "
        + both
        + "xor.b32 at, $20, $22; add.u32 at, at, $18; add.u32 at, at, $16; "
        + stores
        + "}"
    )


@gluon.constexpr_function
def _has_neighbours(layout):
    """Whether a thread's first two values of a tile that `subtile` made are neighbours in a row."""
    return list(layout.parent.reg_bases[0][:2]) == [0, 1]


@gluon.jit
def go_back(gate, up, dh, weights, curve, address):
    """Writes the gradients of gate and up and the weighted value. Returns the value times dh."""
    gl.static_assert(_has_neighbours(dh.type.layout), "two neighbours are a word")
    TYPE: gl.constexpr = "bf16" if gate.dtype == gl.bfloat16 else "f16"
    row = gl.arange(0, PART, gl.SliceLayout(1, dh.type.layout)).expand_dims(1)
    column = gl.arange(0, PART, gl.SliceLayout(0, dh.type.layout)).expand_dims(0)
    return gl.inline_asm_elementwise(
        _back(TYPE),
        "=f,=f,r,r,f,f,f,f,f,f,f,f,f,f,f,f,r,r,r,r,r,r,r,r",
        [
            gate, up, dh, weights, curve.linear, curve.cubic, curve.limit, curve.shift,
            address, row * 128 + column % 8 * 2, row % 8 * 16, column // 8 * 16,
        ],
        dtype=gl.float32,
        is_pure=False,
        pack=2,
    )  # fmt: skip
