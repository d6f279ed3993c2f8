"""`basic_gated`: C = activation(gate, up) of A @ B[g] for the rows of A that are group g's; sm_80 and later.

As `basic_ragged`, with two columns of B for one of C, and rows of A by an index where there is one. The rows behind the
last end have K = 0 and no bias, and every activation makes 0 of that. A launch has one record, GATED_POINTERS of
aot/spec/records.py, in its parameters `list_words`.
"""

import triton
import triton.language as tl

from ..addressing import typed_pointer, whole
from ..records import gated_pointers_in_words as at
from ..schedule import tile_position
from ..sizes import ceil_div
from .gated_tile import activate_sums, gated_sums, load_rows
from .ragged_m import SCAN_WINDOW, find_group, group_ends
from .tile import store


@triton.jit
def basic_gated(
    list_words,
    groups,
    rows,
    columns,
    depth,
    DTYPE: tl.constexpr,
    OUT: tl.constexpr,
    LAYOUT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    RASTER: tl.constexpr,
):
    """One CTA of a persistent grid: every `num_programs`-th tile, group by group.

    LAYOUT "nn", "nt": B with N or K contiguous. Pointers on 16 bytes, and 8 divides leading strides, half of `columns`,
    and K. A tile has BLOCK_N columns of B, half of them gate's.
    """
    COLUMNS: tl.constexpr = BLOCK_N // 2
    a = typed_pointer(list_words[at.a], DTYPE, True)
    c = typed_pointer(list_words[at.c], OUT, True)
    offs = list_words[at.offs].to(tl.pointer_type(tl.int32))
    M, N, K = rows, whole(columns // 2, True), whole(depth, True)

    tile = tl.program_id(0)
    next_tile = 0  # the first behind the groups of the windows so far
    next_row = 0
    for start_group in range(0, groups + 1, SCAN_WINDOW):
        tiles_before, rows_before = next_tile, next_row
        index = start_group + tl.arange(0, SCAN_WINDOW)
        starts = group_ends(offs, index - 1, groups, M, rows_before, list_words[at.skips_rest])
        ends = group_ends(offs, index, groups, M, rows_before, list_words[at.skips_rest])
        tiles = ceil_div(ends - starts, BLOCK_M) * ceil_div(N, COLUMNS)
        tile_ends = tiles_before + tl.cumsum(tiles)
        next_tile, next_row = tl.max(tile_ends), tl.max(ends)
        while tile < next_tile:
            passed, first, start, stop = find_group(tile, tile_ends, ends, tiles_before, rows_before, M)
            group = start_group + passed
            exists = group < groups  # else these are the rows behind the last group
            m_tile, n_tile = tile_position(tile - first, stop - start, N, BLOCK_M, COLUMNS, RASTER)
            m, n = start + m_tile * BLOCK_M, n_tile * COLUMNS
            # Always 0, which no compiler sees: else products of strides are live all through the loop over the tiles.
            zero = tl.minimum(tile, 0).to(tl.int64)
            matrix = group.to(tl.int64) * whole(list_words[at.b_group] + zero, True)
            gate = typed_pointer(list_words[at.b], DTYPE, True) + matrix
            up = typed_pointer(list_words[at.b_up], DTYPE, True) + matrix
            a_rows, read = load_rows(
                list_words[at.index] + zero, list_words[at.index_bytes], m, stop, list_words[at.a_rows], BLOCK_M
            )
            gate_sums, up_sums = gated_sums(
                a, gate, up, a_rows, read, n, N - n, tl.where(exists, K, 0), whole(list_words[at.a_row] + zero, True),
                whole(list_words[at.b_row] + zero, True), whole(list_words[at.b_col] + zero, True),
                LAYOUT, BLOCK_M, COLUMNS, BLOCK_K,
            )  # fmt: skip
            row_bytes = group.to(tl.int64) * list_words[at.bias_row] * (OUT.primitive_bitwidth // 8)
            has_bias = (list_words[at.bias] != 0) & exists
            bias = tl.where(has_bias, list_words[at.bias] + row_bytes, 0)
            values = activate_sums(
                gate_sums, up_sums, bias, list_words[at.bias_up] + row_bytes, list_words[at.bias_col], n, N - n,
                list_words[at.activation], OUT,
            )  # fmt: skip
            store(c, values, m, n, stop - m, N - n, whole(list_words[at.c_row] + zero, True), 1, LAYOUT)
            tile += tl.num_programs(0)
