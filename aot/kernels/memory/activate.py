"""`activate`: what an activation makes of the pre-activation of a product that is written already; sm_80 and later.

Each program writes BLOCK_M rows of BLOCK_N columns. It reads what the product has rounded, computes in float32 and
rounds once more.
"""

import triton
import triton.language as tl

from ..activation import apply_activation
from ..addressing import rows_to_write, typed_pointer, whole
from ..sizes import ceil_div
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
    limit_bits,
    gate_order,
    y_group,
    out_group,
    counts,
    group_rows,
    DTYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """out[r, c] = activation of y[r, c], or of the gate and the up column for c where it is gated.

    `columns`: of `out`; y has twice as many where the activation is gated, and may be `out` where it is not. Strides in
    elements. limit_bits: of a float32 that gate and up are limited to, infinity for none. `ends`: 0, or int32 [groups],
    which rise: rows from the last on are neither read nor written. group_rows: 0, or rows of each matrix of a stack;
    their matrices are y_group and out_group apart, and rows of matrix g from counts[g] on are neither read nor written,
    where `counts`, int32, is not 0. ALIGNED: pointers on 16 bytes, y_col and out_col are 1, and 8 divides the other
    strides and `columns`.
    """
    blocks = ceil_div(columns, BLOCK_N)
    # From the last rows to the first: what the product wrote last is still in L2, and what is written last is what the
    # next product reads first.
    program = tl.num_programs(0) - 1 - tl.program_id(0)
    first = (program // blocks).to(tl.int64) * BLOCK_M
    wanted = rows_to_write(rows, ends, groups)
    if first < wanted:
        row = first + tl.arange(0, BLOCK_M)
        column = (program % blocks).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
        width = whole(columns, ALIGNED)
        kept = row < wanted
        y_start, out_start = row * whole(y_row, ALIGNED), row * whole(out_row, ALIGNED)
        if group_rows > 0:
            group = row // group_rows
            own = row - group * group_rows
            y_start = group * whole(y_group, ALIGNED) + own * whole(y_row, ALIGNED)
            out_start = group * whole(out_group, ALIGNED) + own * whole(out_row, ALIGNED)
            if counts != 0:
                kept &= own < tl.load(counts.to(tl.pointer_type(tl.int32)) + group, mask=kept, other=0)
        mask = kept[:, None] & (column < width)[None, :]
        gate, up = load_gate_and_up(y, y_start, y_col, column, width, mask, activation, gate_order, DTYPE, ALIGNED)
        value = apply_activation(gate, up, activation, limit_bits)
        out_step = 1 if ALIGNED else out_col
        target = typed_pointer(out, DTYPE, ALIGNED) + out_start[:, None]
        tl.store(target + (column * out_step)[None, :], value.to(DTYPE), mask=mask)
