"""`activate_quantize`: what an activation makes of the pre-activation of a product, in e4m3 with a scale for each
128 of a row; sm_90.

Each program makes blocks as one of `quantize` does, from the last rows to the first: what the product wrote last is
still in L2, and what is written last is what the next product reads first. It reads what the product has rounded,
computes in float32 and rounds once, to e4m3.
"""

import triton
import triton.language as tl

from ..activation import apply_activation
from ..addressing import rows_to_write, typed_pointer, whole
from ..sizes import ceil_div
from .block_scale import scales_of
from .gate_and_up import load_gate_and_up


@triton.jit
def activate_quantize(
    y,
    y_row,
    y_col,
    out,
    out_row,
    scales,
    scale_row,
    scale_col,
    ends,
    rows,
    columns,
    groups,
    activation,
    limit_bits,
    gate_order,
    DTYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """h[r, c] = activation of y[r, c], or of the gate and the up column for c where it is gated; scales[r, b] =
    max(abs(h[r, block b])) / 448, and out[r, block b] = h[r, block b] / scales[r, b] in e4m3, as `quantize` has them.

    `columns`: of `out`; y has twice as many where the activation is gated. Strides in elements; `out` has rows of
    contiguous elements. `ends`: 0, or int32 [groups], which rise: rows from the last on are neither read nor written.
    ALIGNED: pointers on 16 bytes, y_col is 1, 16 divides out_row and `columns`, and 8 divides y_row.
    """
    blocks = ceil_div(columns, BLOCK_N)
    block = tl.program_id(0) % blocks
    column = block * BLOCK_N + tl.arange(0, BLOCK_N)
    width = whole(columns, ALIGNED)
    within = tl.arange(0, BLOCK_N) < width - block * BLOCK_N
    wanted = rows_to_write(rows, ends, groups)
    tiles = ceil_div(wanted, BLOCK_M)
    for tile in range(tl.program_id(0) // blocks, tiles, tl.num_programs(0) // blocks):
        row = (tiles - 1 - tile).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
        inside = row < wanted
        mask = inside[:, None] & within[None, :]
        start = row * whole(y_row, ALIGNED)
        gate, up = load_gate_and_up(y, start, y_col, column, width, mask, activation, gate_order, DTYPE, ALIGNED)
        values = apply_activation(gate, up, activation, limit_bits, True)  # 0 of zeros
        scale, inverse = scales_of(values)
        target = typed_pointer(out, tl.float8e4nv, ALIGNED) + (row * whole(out_row, ALIGNED))[:, None]
        tl.store(target + column[None, :], (values * inverse[:, None]).to(tl.float8e4nv), mask=mask)
        of_row = scales.to(tl.pointer_type(tl.float32)) + row * scale_row + block.to(tl.int64) * scale_col
        tl.store(of_row, scale, mask=inside)
