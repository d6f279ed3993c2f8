"""`activate`: what an activation makes of the pre-activation of a product that is written already; sm_80 and later.

Each program writes BLOCK_M rows of BLOCK_N columns. It reads what the product has rounded, computes in float32 and
rounds once more.
"""

import triton
import triton.language as tl

from ..activation import apply_activation
from ..addressing import rows_to_write, typed_pointer, whole
from .gate_and_up import load_gate_and_up


@triton.jit
def activate(
    y,
    y_row,
    y_col,
    out,
    out_row,
    out_col,
    ends,
    rows,
    columns,
    groups,
    activation,
    gate_order,
    DTYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """out[r, c] = activation of y[r, c], or of the gate and the up column for c where it is gated.

    `columns`: of `out`; y has twice as many where the activation is gated, and may be `out` where it is not. Strides in
    elements. `ends`: 0, or int32 [groups], which rise: rows from the last on are neither read nor written. ALIGNED:
    pointers on 16 bytes, y_col and out_col are 1, and 8 divides the other strides and `columns`.
    """
    blocks = tl.cdiv(columns, BLOCK_N)
    first = (tl.program_id(0) // blocks).to(tl.int64) * BLOCK_M
    wanted = rows_to_write(rows, ends, groups)
    if first < wanted:
        row = first + tl.arange(0, BLOCK_M)
        column = (tl.program_id(0) % blocks).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
        width = whole(columns, ALIGNED)
        mask = (row < wanted)[:, None] & (column < width)[None, :]
        gate, up = load_gate_and_up(y, y_row, y_col, row, column, width, mask, activation, gate_order, DTYPE, ALIGNED)
        value = apply_activation(gate.to(tl.float32), up.to(tl.float32), activation)
        out_step = 1 if ALIGNED else out_col
        target = typed_pointer(out, DTYPE, ALIGNED) + (row * whole(out_row, ALIGNED))[:, None]
        tl.store(target + (column * out_step)[None, :], value.to(DTYPE), mask=mask)
