"""`activation_gradient`: from the gradient of an activation's output to that of its input, with the weights of the rows
and the gradients of these weights; sm_80 and later.

Each program has BLOCK_M whole rows, BLOCK_N columns at a time, so that the sum of a row is made in one place and in one
order. It reads 16-bit values, computes in float32 and rounds once.
"""

import triton
import triton.language as tl

from ..activation_slopes import activation_and_slopes
from ..addressing import rows_to_write, typed_pointer, whole
from ..sizes import ceil_div
from .combine import load_weight
from .gate_and_up import load_gate_and_up, store_gate_and_up


@triton.jit
def activation_gradient(
    y,
    y_row,
    y_col,
    dh,
    dh_row,
    dh_col,
    weights,
    weight_index,
    dweights,
    out,
    out_row,
    out_col,
    h,
    h_row,
    h_col,
    ends,
    rows,
    columns,
    groups,
    entries,
    weight_kind,
    activation,
    limit_bits,
    gate_order,
    factor_bits,
    DTYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Where a row is weighted by w = factor * weights[weight_index[r]] after its activation, and dh is the gradient of
    the weighted row: out[r] = w * dh[r] * act'(y[r]), h[r] = w * act(y[r]), and
    dweights[weight_index[r]] = factor * sum of act(y[r]) * dh[r].

    `columns`: of dh and h; y and `out` have twice as many where the activation is gated. `weights` [entries] may be 0:
    1 for all. `h` may be 0, and `dweights`, float32 [entries]: it is not written. A row whose index is not in
    [0, entries) weighs 0 where there are weights, and has no gradient. Strides in elements. `ends`: as in `activate`.
    ALIGNED: pointers on 16 bytes, strides of columns are 1, and 8 divides the other strides and `columns`.
    """
    # From the last rows to the first: what the product wrote last is still in L2, and what is written last is what the
    # next product reads first.
    first = (tl.num_programs(0) - 1 - tl.program_id(0)).to(tl.int64) * BLOCK_M
    row = first + tl.arange(0, BLOCK_M)
    slot = tl.full((BLOCK_M,), -1, tl.int32)
    if weight_index != 0:  # of rows past the last end too: it is on its way while the end is
        slot = tl.load(weight_index.to(tl.pointer_type(tl.int32)) + row, mask=row < rows, other=-1)
    wanted = rows_to_write(rows, ends, groups)
    if first < wanted:
        inside = row < wanted
        factor = tl.cast(factor_bits, tl.float32, bitcast=True)
        weight = tl.full((BLOCK_M,), 1.0, tl.float32)
        known = inside & (slot >= 0) & (slot < entries)
        if weights != 0:
            weight = load_weight(weights, weight_kind, slot, known)
        weight = (factor * weight)[:, None]
        width = whole(columns, ALIGNED)
        y_start, out_start = row * whole(y_row, ALIGNED), row * whole(out_row, ALIGNED)
        step = 1 if ALIGNED else dh_col
        h_step = 1 if ALIGNED else h_col
        source = typed_pointer(dh, DTYPE, ALIGNED) + (row * whole(dh_row, ALIGNED))[:, None]
        sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for block in range(0, ceil_div(width, BLOCK_N)):
            column = block * BLOCK_N + tl.arange(0, BLOCK_N)
            mask = inside[:, None] & (tl.arange(0, BLOCK_N) < width - block * BLOCK_N)[None, :]
            gradient = tl.load(source + (column * step)[None, :], mask=mask, other=0.0).to(tl.float32)
            gate, up = load_gate_and_up(y, y_start, y_col, column, width, mask, activation, gate_order, DTYPE, ALIGNED)
            value, by_gate, by_up = activation_and_slopes(gate, up, activation, limit_bits)
            sums += value * gradient
            if h != 0:
                target = typed_pointer(h, DTYPE, ALIGNED) + (row * whole(h_row, ALIGNED))[:, None]
                tl.store(target + (column * h_step)[None, :], (weight * value).to(DTYPE), mask=mask)
            gradient *= weight
            store_gate_and_up(
                gradient * by_gate, gradient * by_up, out, out_start, out_col, column, width, mask, activation,
                gate_order, DTYPE, ALIGNED,
            )  # fmt: skip
        if dweights != 0:
            total = factor * tl.sum(sums, axis=1)
            tl.store(dweights.to(tl.pointer_type(tl.float32)) + slot, total, mask=known)
