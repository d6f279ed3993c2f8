"""`activate`: what an activation makes of the pre-activation of a product that is written already; sm_80 and later.

Each program writes BLOCK_M rows of BLOCK_N columns. It reads what the product has rounded, computes in float32 and
rounds once more.
"""

import triton
import triton.language as tl

from ..activation import INTERLEAVED, UP_FIRST, apply_activation, is_gated
from ..addressing import rows_to_write, typed_pointer, whole


@triton.jit
def _load_pairs(y, start, column, mask, DTYPE: tl.constexpr):
    """Elements 2c and 2c + 1 of each column c, of 16 bits each, as one word of 32. `start`: of rows, in elements."""
    words = tl.multiple_of(y.to(tl.pointer_type(tl.int32)), 16)
    pair = tl.load(words + (start // 8 * 4)[:, None] + column[None, :], mask=mask)
    left, right = pair.to(tl.int16), (pair >> 16).to(tl.int16)
    return left.to(DTYPE, bitcast=True).to(tl.float32), right.to(DTYPE, bitcast=True).to(tl.float32)


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
    elements. `ends`: 0, or int32 [groups], which rise: rows from the last on are neither read nor written. group_rows: 0,
    or rows of each matrix of a stack; their matrices are y_group and out_group apart, and rows of matrix g from
    counts[g] on are neither read nor written, where `counts`, int32, is not 0. ALIGNED: pointers on 16 bytes, y_col and
    out_col are 1, and 8 divides the other strides and `columns`.
    """
    blocks = tl.cdiv(columns, BLOCK_N)
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
        in_step = 1 if ALIGNED else y_col
        source = typed_pointer(y, DTYPE, ALIGNED) + y_start[:, None]
        # What is not inside has any value: it is not stored.
        if not is_gated(activation):
            gate = tl.load(source + (column * in_step)[None, :], mask=mask).to(tl.float32)
            up = gate
        elif gate_order == INTERLEAVED:
            if ALIGNED:
                gate, up = _load_pairs(y, y_start, column, mask, DTYPE)
            else:
                gate = tl.load(source + (2 * column * in_step)[None, :], mask=mask).to(tl.float32)
                up = tl.load(source + ((2 * column + 1) * in_step)[None, :], mask=mask).to(tl.float32)
        else:
            gate_start = width if gate_order == UP_FIRST else 0
            gate = tl.load(source + ((column + gate_start) * in_step)[None, :], mask=mask).to(tl.float32)
            up = tl.load(source + ((column + width - gate_start) * in_step)[None, :], mask=mask).to(tl.float32)
        value = apply_activation(gate, up, activation)
        out_step = 1 if ALIGNED else out_col
        target = typed_pointer(out, DTYPE, ALIGNED) + out_start[:, None]
        tl.store(target + (column * out_step)[None, :], value.to(DTYPE), mask=mask)
