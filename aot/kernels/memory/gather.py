"""`gather`: rows of a matrix by an index, one behind the other, each with a factor if wanted; sm_80 and later.

Each program writes BLOCK_M rows of BLOCK_N columns, all of whose loads are in flight at once. It reads the index once.
A row whose index is outside of [0, source_rows) becomes zeros: nothing is read for it.
"""

import triton
import triton.language as tl

from ..addressing import rows_to_write, typed_pointer, whole
from ..sizes import ceil_div
from .combine import load_weight


@triton.jit
def _load_index(index, index_bytes, row, inside):
    """Integers of 4 or 8 bytes as int64; -1 where not `inside`."""
    if index_bytes == 8:
        value = tl.load(index.to(tl.pointer_type(tl.int64)) + row, mask=inside, other=-1)
    else:
        value = tl.load(index.to(tl.pointer_type(tl.int32)) + row, mask=inside, other=-1).to(tl.int64)
    return value


@triton.jit
def gather(
    y,
    y_row,
    y_col,
    index,
    out,
    out_row,
    ends,
    weights,
    weight_index,
    rows,
    columns,
    source_rows,
    groups,
    index_bytes,
    weight_kind,
    DTYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """out[r] = y[index[r]], times weights[weight_index[r]] where `weights` is not 0: 0 for a weight_index below 0.

    Strides in elements; the columns of `out` have none. `ends`: 0, or int32 [groups], which rise: rows from the last on
    are neither read nor written. ALIGNED: pointers on 16 bytes, y_col is 1, and 8 divides the other strides and
    `columns`.
    """
    blocks = ceil_div(columns, BLOCK_N)
    first = (tl.program_id(0) // blocks).to(tl.int64) * BLOCK_M
    wanted = rows_to_write(rows, ends, groups)
    if first < wanted:
        row = first + tl.arange(0, BLOCK_M)
        column = (tl.program_id(0) % blocks).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
        written = row < wanted
        place = _load_index(index, index_bytes, row, written)
        kept = (place >= 0) & (place < source_rows)
        inside = (column < whole(columns, ALIGNED))[None, :]
        source = typed_pointer(y, DTYPE, ALIGNED) + (tl.where(kept, place, 0) * whole(y_row, ALIGNED))[:, None]
        step = 1 if ALIGNED else y_col
        values = tl.load(source + (column * step)[None, :], mask=inside & kept[:, None], other=0.0)
        if weights != 0:
            slot = _load_index(weight_index, 4, row, written)
            factor = load_weight(weights, weight_kind, slot, slot >= 0)
            values = (values.to(tl.float32) * factor[:, None]).to(DTYPE)
        target = typed_pointer(out, DTYPE, ALIGNED) + (row * whole(out_row, ALIGNED))[:, None]
        tl.store(target + column[None, :], values, mask=inside & written[:, None])
