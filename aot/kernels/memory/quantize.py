"""`quantize`: rows in e4m3, with a float32 scale for each 128 of a row; sm_90.

Each program makes BLOCK_M blocks of BLOCK_N columns, one below the other. A block is read once, and no program waits
for another.
"""

import triton
import triton.language as tl

from ..addressing import typed_pointer, whole

LARGEST = tl.constexpr(448.0)  # of e4m3
SMALLEST = tl.constexpr(2.0**-100)  # a block whose largest is below becomes zeros with the scale 1


@triton.jit
def quantize(
    y,
    y_row,
    y_col,
    out,
    out_row,
    scales,
    rows,
    columns,
    DTYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """scales[r, b] = max(abs(y[r, block b])) / 448, and out[r, block b] = y[r, block b] / scales[r, b] in e4m3.

    Strides in elements; `out` has rows of contiguous elements, and scales is [rows, ceil(columns / 128)], row-major. A
    block that has NaN keeps it where it is; one that has infinities becomes NaN there and zeros elsewhere. ALIGNED:
    pointers on 16 bytes, y_col is 1, 16 divides out_row and `columns`, and 8 divides y_row.
    """
    blocks = tl.cdiv(columns, BLOCK_N)
    block = tl.program_id(0) % blocks
    row = (tl.program_id(0) // blocks).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = block * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = row < rows
    mask = inside[:, None] & (column < whole(columns, ALIGNED))[None, :]
    step = 1 if ALIGNED else y_col
    source = typed_pointer(y, DTYPE, ALIGNED) + (row * whole(y_row, ALIGNED))[:, None]
    values = tl.load(source + (column.to(tl.int64) * step)[None, :], mask=mask, other=0.0).to(tl.float32)
    largest = tl.max(tl.abs(values), axis=1)
    is_small = (largest < SMALLEST) | (largest != largest)  # or nothing but NaN
    scale = tl.where(is_small, 1.0, tl.math.div_rn(largest, tl.full((BLOCK_M,), LARGEST, tl.float32)))
    inverse = tl.where(is_small, 0.0, tl.math.div_rn(tl.full((BLOCK_M,), LARGEST, tl.float32), largest))
    target = typed_pointer(out, tl.float8e4nv, ALIGNED) + (row * whole(out_row, ALIGNED))[:, None]
    tl.store(target + column[None, :], (values * inverse[:, None]).to(tl.float8e4nv), mask=mask)
    tl.store(scales.to(tl.pointer_type(tl.float32)) + row * blocks + block, scale, mask=inside)
