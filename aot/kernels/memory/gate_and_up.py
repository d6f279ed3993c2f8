"""Gate and up of a pre-activation in memory, in any of GATE_ORDERS; of an activation that is not gated, its one column.

`start` is where each row begins; `column` counts those of the activation's output, of which there are `width`. All in
elements. ALIGNED as in `activate`, and 8 divides `start`.
"""

import triton
import triton.language as tl

from ..activation import INTERLEAVED, UP_FIRST, is_gated
from ..addressing import typed_pointer


@triton.jit
def load_gate_and_up(
    y, start, y_col, column, width, mask, activation, gate_order, DTYPE: tl.constexpr, ALIGNED: tl.constexpr
):
    """Both as float32, 0 outside of `mask`; the same twice where the activation is not gated.

    Each branch makes them float32: values of 16 bits that meet behind a branch are packed and taken apart again.
    """
    step = 1 if ALIGNED else y_col
    source = typed_pointer(y, DTYPE, ALIGNED) + start[:, None]
    if not is_gated(activation):
        gate = tl.load(source + (column * step)[None, :], mask=mask, other=0.0).to(tl.float32)
        up = gate
    elif gate_order == INTERLEAVED:
        if ALIGNED:
            pair = tl.load(_pair_pointers(y, start, column), mask=mask, other=0)
            gate = pair.to(tl.int16).to(DTYPE, bitcast=True).to(tl.float32)
            up = (pair >> 16).to(tl.int16).to(DTYPE, bitcast=True).to(tl.float32)
        else:
            gate = tl.load(source + (2 * column * step)[None, :], mask=mask, other=0.0).to(tl.float32)
            up = tl.load(source + ((2 * column + 1) * step)[None, :], mask=mask, other=0.0).to(tl.float32)
    else:
        gate_start = width if gate_order == UP_FIRST else 0
        gate = tl.load(source + ((column + gate_start) * step)[None, :], mask=mask, other=0.0).to(tl.float32)
        up = tl.load(source + ((column + width - gate_start) * step)[None, :], mask=mask, other=0.0).to(tl.float32)
    return gate, up


@triton.jit
def store_gate_and_up(
    gate, up, out, start, out_col, column, width, mask, activation, gate_order, DTYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
):  # fmt: skip
    """Float32 values, rounded to DTYPE, where load_gate_and_up finds them; `gate` alone where it is not gated."""
    step = 1 if ALIGNED else out_col
    target = typed_pointer(out, DTYPE, ALIGNED) + start[:, None]
    gate, up = gate.to(DTYPE), up.to(DTYPE)
    if not is_gated(activation):
        tl.store(target + (column * step)[None, :], gate, mask=mask)
    elif gate_order == INTERLEAVED:
        if ALIGNED:
            low = gate.to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
            pair = low | (up.to(tl.int16, bitcast=True).to(tl.int32) << 16)
            tl.store(_pair_pointers(out, start, column), pair, mask=mask)
        else:
            tl.store(target + (2 * column * step)[None, :], gate, mask=mask)
            tl.store(target + ((2 * column + 1) * step)[None, :], up, mask=mask)
    else:
        gate_start = width if gate_order == UP_FIRST else 0
        tl.store(target + ((column + gate_start) * step)[None, :], gate, mask=mask)
        tl.store(target + ((column + width - gate_start) * step)[None, :], up, mask=mask)


@triton.jit
def _pair_pointers(y, start, column):
    """Elements 2c and 2c + 1 of each column c, of 16 bits each, as one word of 32."""
    words = tl.multiple_of(y.to(tl.pointer_type(tl.int32)), 16)
    return words + (start // 8 * 4)[:, None] + column[None, :]
