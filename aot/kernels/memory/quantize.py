"""`quantize`: rows in e4m3, with a float32 scale for each 128 of a row; each row once, or at the places of its copies;
sm_90.

Each program makes BLOCK_M blocks of BLOCK_N columns, one below the other. A block is read once, and no program waits
for another.
"""

import triton
import triton.language as tl

from ..addressing import rows_to_write, typed_pointer, whole
from .block_scale import scales_of
from .combine import load_weight

_AT_ONCE = tl.constexpr(8)  # places of a row that are read together


@triton.jit
def _store(target, place, out_row, quantized, scale_target, scale_row, scale, kept, within):
    """A block of each row that is `kept`, and its scale, at the row's place."""
    tl.store(target + (place * out_row)[:, None], quantized, mask=kept[:, None] & within)
    tl.store(scale_target + place * scale_row, scale, mask=kept)


@triton.jit
def quantize(
    y,
    y_row,
    y_col,
    inverse,
    out,
    out_row,
    scales,
    scale_row,
    scale_col,
    ends,
    weights,
    rows,
    columns,
    entries,
    top_k,
    groups,
    weight_kind,
    DTYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """scales[r, b] = max(abs(y[r, block b])) / 448, and out[r, block b] = y[r, block b] / scales[r, b] in e4m3.

    Strides in elements; `out` has rows of contiguous elements, and scales is [rows, ceil(columns / 128)]. A block that
    has NaN keeps it where it is; one that has infinities becomes NaN there and zeros elsewhere. `inverse`: 0, or int32
    [rows, top_k], the rows of `out` and of `scales` where a row of y goes: nowhere for one that is not in [0, entries).
    There its scales are multiplied by weights[r, j] if `weights`, [rows, top_k], is not 0. `ends`: 0, or int32
    [groups], which rise: rows of y from the last on are not read. ALIGNED: pointers on 16 bytes, y_col is 1, 16 divides
    out_row and `columns`, and 8 divides y_row.
    """
    blocks = tl.cdiv(columns, BLOCK_N)
    block = tl.program_id(0) % blocks
    first = (tl.program_id(0) // blocks).to(tl.int64) * BLOCK_M
    wanted = rows_to_write(rows, ends, groups)
    if first < wanted:
        row = first + tl.arange(0, BLOCK_M)
        column = block * BLOCK_N + tl.arange(0, BLOCK_N)
        inside = row < wanted
        within = (column < whole(columns, ALIGNED))[None, :]
        step = 1 if ALIGNED else y_col
        source = typed_pointer(y, DTYPE, ALIGNED) + (tl.where(inside, row, 0) * whole(y_row, ALIGNED))[:, None]
        source += (column.to(tl.int64) * step)[None, :]
        values = tl.load(source, mask=inside[:, None] & within, other=0.0).to(tl.float32)
        scale, inverse_scale = scales_of(values)
        quantized = (values * inverse_scale[:, None]).to(tl.float8e4nv)
        target = typed_pointer(out, tl.float8e4nv, ALIGNED) + column[None, :]
        scale_target = scales.to(tl.pointer_type(tl.float32)) + block.to(tl.int64) * scale_col
        out_row = whole(out_row, ALIGNED)
        if inverse == 0:
            _store(target, row, out_row, quantized, scale_target, scale_row, scale, inside, within)
        else:
            for j in range(0, top_k, _AT_ONCE):
                places = ()
                for i in tl.static_range(_AT_ONCE):
                    place = inverse.to(tl.pointer_type(tl.int32)) + row * top_k + (j + i)
                    places += (tl.load(place, mask=inside & (j + i < top_k), other=-1).to(tl.int64),)
                for i in tl.static_range(_AT_ONCE):
                    kept = (places[i] >= 0) & (places[i] < entries)
                    factor = scale
                    if weights != 0:
                        factor *= load_weight(weights, weight_kind, row * top_k + (j + i), kept)
                    _store(target, places[i], out_row, quantized, scale_target, scale_row, factor, kept, within)
