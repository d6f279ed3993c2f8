"""`basic_ragged`: C = A @ B[g] for the rows of A that are group g's, through pointers and cp.async; sm_80 and later.

As `basic`, with ragged M: `offs` says on the device where the groups end (pointer/ragged_m.py). The rows behind the
last end have K = 0 and no bias, which makes them 0. It serves what `hopper_ragged` cannot: TMA needs a box to start on
16 bytes, and a group may start at any row, so an A with rows contiguous is read by pointers. A launch has one record,
GROUPED_POINTERS of aot/spec/records.py, in its parameters `list_words`.
"""

import triton
import triton.language as tl

from ..addressing import typed_pointer, whole
from ..mixed import dtype_of_b
from ..records import grouped_pointers_in_words as at
from ..records import scaled_pointers_in_words as scaled
from ..schedule import tile_position
from ..sizes import ceil_div
from .bias import add_bias
from .ragged_m import SCAN_WINDOW, find_group, group_ends
from .scales import BLOCK, product_of_blocks, scale_rows
from .scaling import apply_scaling, load_scale
from .tile import product, store


@triton.jit
def basic_ragged(
    list_words,
    groups,
    rows,
    columns,
    depth,
    DTYPE: tl.constexpr,
    OUT: tl.constexpr,
    LAYOUT: tl.constexpr,
    ALIGNED: tl.constexpr,
    SCALING: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    RASTER: tl.constexpr,
):
    """One CTA of a persistent grid: every `num_programs`-th tile, group by group.

    LAYOUT "nn", "nt", "tn", "tt": A with K or rows contiguous, B with N or K contiguous; "strided": neither is known.
    ALIGNED (nn and nt): pointers on 16 bytes, and 8 divides leading strides, N and K. SCALING: of aot/spec/abi.py.
    """
    a = typed_pointer(list_words[at.a], DTYPE, ALIGNED)
    b = typed_pointer(list_words[at.b], dtype_of_b(DTYPE), ALIGNED)
    c = typed_pointer(list_words[at.c], OUT, ALIGNED)
    offs = list_words[at.offs].to(tl.pointer_type(tl.int32))
    M, N, K = rows, whole(columns, ALIGNED), whole(depth, ALIGNED)

    tile = tl.program_id(0)
    next_tile = 0  # the first behind the groups of the windows so far
    next_row = 0
    for start_group in range(0, groups + 1, SCAN_WINDOW):
        tiles_before, rows_before = next_tile, next_row
        index = start_group + tl.arange(0, SCAN_WINDOW)
        starts = group_ends(offs, index - 1, groups, M, rows_before, list_words[at.skips_rest])
        ends = group_ends(offs, index, groups, M, rows_before, list_words[at.skips_rest])
        tiles = ceil_div(ends - starts, BLOCK_M) * ceil_div(N, BLOCK_N)
        tile_ends = tiles_before + tl.cumsum(tiles)
        next_tile, next_row = tl.max(tile_ends), tl.max(ends)
        while tile < next_tile:
            passed, first, start, stop = find_group(tile, tile_ends, ends, tiles_before, rows_before, M)
            group = start_group + passed
            exists = group < groups  # else these are the rows behind the last group
            # Always 0, which no compiler sees: else products of strides and indices are taken out of the loop over the
            # tiles, live in registers all through it, and make them spill.
            zero = tl.minimum(tile, 0).to(tl.int64)
            a_row, a_col = whole(list_words[at.a_row] + zero, ALIGNED), whole(list_words[at.a_col] + zero, ALIGNED)
            b_row, b_col = whole(list_words[at.b_row] + zero, ALIGNED), whole(list_words[at.b_col] + zero, ALIGNED)
            c_row, c_col = whole(list_words[at.c_row] + zero, ALIGNED), whole(list_words[at.c_col] + zero, ALIGNED)
            b_matrix = b + group.to(tl.int64) * whole(list_words[at.b_group], ALIGNED)

            m_tile, n_tile = tile_position(tile - first, stop - start, N, BLOCK_M, BLOCK_N, RASTER)
            m, n = start + m_tile * BLOCK_M, n_tile * BLOCK_N
            m_left, n_left = stop - m, N - n
            if SCALING == "block":
                tl.static_assert(BLOCK_N <= BLOCK)
                index_b = group.to(tl.int64) * list_words[at.scale_b_step]
                block_b = list_words[at.scale_b] + 4 * (index_b + n // BLOCK * list_words[scaled.scale_b_n])
                sums = product_of_blocks(
                    a, b_matrix, m, n, m_left, n_left, tl.where(exists, K, 0), a_row, a_col, b_row, b_col,
                    list_words[at.scale_a], list_words[scaled.scale_a_row], list_words[scaled.scale_a_k],
                    block_b, list_words[scaled.scale_b_k], LAYOUT, ALIGNED, BLOCK_M, BLOCK_N, BLOCK_K,
                )  # fmt: skip
            else:
                sums = product(
                    a, b_matrix, m, n, m_left, n_left, tl.where(exists, K, 0), a_row, a_col, b_row, b_col,
                    LAYOUT, ALIGNED, BLOCK_M, BLOCK_N, BLOCK_K,
                )  # fmt: skip
            if SCALING == "row":
                index_b = group.to(tl.int64) * list_words[at.scale_b_step]
                sums = scale_rows(
                    sums, list_words[at.scale_a], list_words[scaled.scale_a_row],
                    list_words[at.scale_b] + 4 * index_b, list_words[scaled.scale_b_n], m, n, m_left, n_left, exists,
                )  # fmt: skip
            elif SCALING != "block":
                index_b = group.to(tl.int64) * list_words[at.scale_b_step]
                scale_b = load_scale(list_words[at.scale_b], index_b, exists, SCALING)
                scale_a = load_scale(list_words[at.scale_a], 0, exists, SCALING)
                sums = apply_scaling(sums, scale_a, scale_b, SCALING)
            if (list_words[at.bias] != 0) & exists:
                row_bytes = list_words[at.bias_row] * (OUT.primitive_bitwidth // 8)
                bias = list_words[at.bias] + group.to(tl.int64) * row_bytes
                sums = add_bias(sums, bias, list_words[at.bias_col], n, n_left, OUT)
            store(c, sums, m, n, m_left, n_left, c_row, c_col, LAYOUT)
            tile += tl.num_programs(0)
