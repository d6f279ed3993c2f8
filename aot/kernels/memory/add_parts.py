"""`add_parts`: the sums of the parts of a product, added up in their order, and what the output had; sm_80 and later.

Each program writes BLOCK_M rows of BLOCK_N columns. All sums are float32, and rounded once.
"""

import triton
import triton.language as tl

from ..addressing import typed_pointer, whole
from ..factor import load_factor
from ..sizes import ceil_div


@triton.jit
def add_parts(
    y,
    y_row,
    out,
    out_group,
    out_row,
    out_col,
    alpha_at,
    beta_at,
    groups,
    parts,
    rows,
    columns,
    alpha_bits,
    beta_bits,
    DTYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """out[g, r, c] = alpha * (the sum over s of y[g, s, r, c], by rising s) + beta * out[g, r, c].

    `y` is float32 [groups, parts, rows, columns], its rows y_row elements apart and without gaps else; strides in
    elements. alpha, beta: the float32 at alpha_at, beta_at, or where those are 0 the one with these bits. `out` is not
    read where beta is 0. ALIGNED: pointers on 16 bytes, out_col is 1, and 8 divides the other strides and `columns`.
    """
    blocks = ceil_div(columns, BLOCK_N)
    first = (tl.program_id(0) // blocks).to(tl.int64) * BLOCK_M
    row = first + tl.arange(0, BLOCK_M)
    column = (tl.program_id(0) % blocks).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    group = row // rows
    mask = (group < groups)[:, None] & (column < whole(columns, ALIGNED))[None, :]
    y_row = whole(y_row, ALIGNED)
    source = typed_pointer(y, tl.float32, ALIGNED) + ((row + group * (parts - 1) * rows) * y_row)[:, None]
    source += column[None, :]
    sums = tl.load(source, mask=mask, other=0.0)
    for part in range(1, parts):
        sums += tl.load(source + part * (rows * y_row), mask=mask, other=0.0)
    sums *= load_factor(alpha_at, alpha_bits)
    beta = load_factor(beta_at, beta_bits)
    step = 1 if ALIGNED else out_col
    target = group * whole(out_group, ALIGNED) + (row - group * rows) * whole(out_row, ALIGNED)
    place = typed_pointer(out, DTYPE, ALIGNED) + target[:, None] + (column * step)[None, :]
    if beta != 0.0:
        sums += beta * tl.load(place, mask=mask, other=0.0).to(tl.float32)
    tl.store(place, sums.to(DTYPE), mask=mask)
