"""`quantize`: rows in e4m3, with a float32 scale for each 128 of a row; of a matrix as it lies, or by an index; sm_90.

Each program makes BLOCK_M blocks of BLOCK_N columns, one below the other, then such blocks further down, as many
programs apart as have its columns. A block is read once, and no program waits for another. A launch of rows that
routing does not tell may begin before routing ends; whoever waits for it waits for both.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from ..addressing import rows_to_write, typed_pointer, whole
from ..sizes import ceil_div
from .block_scale import scales_of
from .combine import load_weight


@triton.jit
def quantize(
    y,
    y_row,
    y_col,
    index,
    out,
    out_row,
    scales,
    scale_row,
    scale_col,
    ends,
    weights,
    weight_index,
    rows,
    columns,
    source_rows,
    groups,
    weight_kind,
    DTYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """scales[r, b] = max(abs(y[r, block b])) / 448, and out[r, block b] = y[r, block b] / scales[r, b] in e4m3.

    Strides in elements; `out` has rows of contiguous elements, and scales is [rows, ceil(columns / 128)]. A block that
    has NaN keeps it where it is; one that has infinities becomes NaN there and zeros elsewhere. `index`: 0, or int32
    [rows], the row of y that becomes each row: zeros where it is not in [0, source_rows). `ends`: 0, or int32 [groups],
    which rise: rows from the last on are neither read nor written. Where `weights` is not 0 the scales are multiplied
    by weights[weight_index[r]]: 0 for a weight_index below 0. ALIGNED: pointers on 16 bytes, y_col is 1, 16 divides
    out_row and `columns`, and 8 divides y_row.
    """
    blocks = ceil_div(columns, BLOCK_N)
    block = tl.program_id(0) % blocks
    column = block * BLOCK_N + tl.arange(0, BLOCK_N)
    within = (tl.arange(0, BLOCK_N) < whole(columns, ALIGNED) - block * BLOCK_N)[None, :]
    step = 1 if ALIGNED else y_col
    wanted = rows_to_write(rows, ends, groups)
    for tile in range(tl.program_id(0) // blocks, ceil_div(wanted, BLOCK_M), tl.num_programs(0) // blocks):
        row = tile.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
        inside = row < wanted
        place = row
        exists = inside
        if index != 0:
            place = tl.load(index.to(tl.pointer_type(tl.int32)) + row, mask=inside, other=-1).to(tl.int64)
            exists = (place >= 0) & (place < source_rows)
            place = tl.where(exists, place, 0)
        source = typed_pointer(y, DTYPE, ALIGNED) + (place * whole(y_row, ALIGNED))[:, None]
        source += (column.to(tl.int64) * step)[None, :]
        values = tl.load(source, mask=exists[:, None] & within, other=0.0).to(tl.float32)
        scale, inverse = scales_of(values)
        if weights != 0:
            slot = tl.load(weight_index.to(tl.pointer_type(tl.int32)) + row, mask=inside, other=-1).to(tl.int64)
            scale *= load_weight(weights, weight_kind, slot, slot >= 0)
        target = typed_pointer(out, tl.float8e4nv, ALIGNED) + (row * whole(out_row, ALIGNED))[:, None]
        quantized = (values * inverse[:, None]).to(tl.float8e4nv)
        tl.store(target + column[None, :], quantized, mask=inside[:, None] & within)
        of_row = scales.to(tl.pointer_type(tl.float32)) + row * scale_row + block.to(tl.int64) * scale_col
        tl.store(of_row, scale, mask=inside)
    gdc_wait()
