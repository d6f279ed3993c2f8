"""`basic_stack`: C[g] = A[g] @ B[g] for stacks of matrices of one size, through pointers and cp.async; sm_80 and later.

As `basic_ragged`, but each group has matrices of its own, and `counts` may say on the device how many of its rows
matter: the others are neither computed nor written. It takes any strides and alignment. A launch has one record,
STACK_POINTERS of aot/spec/records.py or SCALED_STACK_POINTERS, in its parameters `list_words`.
"""

import triton
import triton.language as tl

from ..addressing import typed_pointer, whole
from ..records import scaled_stack_pointers_in_words as scaled
from ..records import stack_pointers_in_words as at
from ..schedule import tile_position
from ..sizes import ceil_div
from .bias import add_bias
from .scales import BLOCK, product_of_blocks, scale_rows
from .scaling import apply_scaling, load_scale
from .tile import product, store

SCAN_WINDOW = tl.constexpr(256)  # groups


@triton.jit
def group_rows(counts, group, groups, M):
    """How many rows of `group`, one or several, matter. A count is read as one in [0, M], whatever it is."""
    stated_groups = tl.where(counts != 0, groups, 0)
    stated = tl.load(counts.to(tl.pointer_type(tl.int32)) + group, mask=group < stated_groups, other=M)
    return tl.where(group < groups, tl.minimum(tl.maximum(stated, 0), M), 0)


@triton.jit
def basic_stack(
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
    """One CTA of a persistent grid: every `num_programs`-th tile, group by group. `rows`: of each matrix.

    LAYOUT "nn", "nt", "tn", "tt": A with K or rows contiguous, B with N or K contiguous; "strided": neither is known.
    ALIGNED: pointers on 16 bytes, and 8 divides strides that are not 1 and contiguous extents. SCALING: of
    aot/spec/abi.py.
    """
    ROWS_CONTIGUOUS: tl.constexpr = LAYOUT[0] == "t"
    M = whole(rows, ALIGNED and ROWS_CONTIGUOUS)
    N = whole(columns, ALIGNED)
    K = whole(depth, ALIGNED and (LAYOUT[0] == "n" or LAYOUT[1] == "t"))
    counts = list_words[at.counts]

    tile = tl.program_id(0)
    next_tile = 0  # the first behind the groups of the windows so far
    for start_group in range(0, groups, SCAN_WINDOW):
        tiles_before = next_tile
        of_window = group_rows(counts, start_group + tl.arange(0, SCAN_WINDOW), groups, M)
        tile_ends = tiles_before + tl.cumsum(ceil_div(of_window, BLOCK_M) * ceil_div(N, BLOCK_N))
        next_tile = tl.max(tile_ends)
        while tile < next_tile:
            passed = tile_ends <= tile
            group = start_group + tl.sum(passed.to(tl.int32))
            first = tl.max(tl.where(passed, tile_ends, tiles_before))
            size = group_rows(counts, group, groups, M)
            # Always 0, which no compiler sees: else products of strides and indices are taken out of the loop over the
            # tiles, live in registers all through it, and make them spill.
            zero = tl.minimum(tile, 0).to(tl.int64)
            a_row, a_col = whole(list_words[at.a_row] + zero, ALIGNED), whole(list_words[at.a_col] + zero, ALIGNED)
            b_row, b_col = whole(list_words[at.b_row] + zero, ALIGNED), whole(list_words[at.b_col] + zero, ALIGNED)
            c_row, c_col = whole(list_words[at.c_row] + zero, ALIGNED), whole(list_words[at.c_col] + zero, ALIGNED)
            group_64 = group.to(tl.int64)
            a = typed_pointer(list_words[at.a], DTYPE, ALIGNED) + group_64 * whole(list_words[at.a_group], ALIGNED)
            b = typed_pointer(list_words[at.b], DTYPE, ALIGNED) + group_64 * whole(list_words[at.b_group], ALIGNED)
            c = typed_pointer(list_words[at.c], OUT, ALIGNED) + group_64 * whole(list_words[at.c_group], ALIGNED)

            m_tile, n_tile = tile_position(tile - first, size, N, BLOCK_M, BLOCK_N, RASTER)
            m, n = m_tile * BLOCK_M, n_tile * BLOCK_N
            # With rows contiguous, vectors of them are loaded: all rows that exist, of which 8 divides the number.
            m_loaded = (M if ROWS_CONTIGUOUS else size) - m
            if SCALING == "block":
                tl.static_assert(BLOCK_N <= BLOCK and not ROWS_CONTIGUOUS)
                index_b = group_64 * list_words[at.scale_b_step] + n // BLOCK * list_words[scaled.scale_b_n]
                sums = product_of_blocks(
                    a, b, m, n, m_loaded, N - n, K, a_row, a_col, b_row, b_col,
                    list_words[at.scale_a] + 4 * group_64 * list_words[scaled.scale_a_group],
                    list_words[scaled.scale_a_row], list_words[scaled.scale_a_k],
                    list_words[at.scale_b] + 4 * index_b, list_words[scaled.scale_b_k],
                    LAYOUT, ALIGNED, BLOCK_M, BLOCK_N, BLOCK_K,
                )  # fmt: skip
            else:
                sums = product(
                    a, b, m, n, m_loaded, N - n, K, a_row, a_col, b_row, b_col,
                    LAYOUT, ALIGNED, BLOCK_M, BLOCK_N, BLOCK_K,
                )  # fmt: skip
            if SCALING == "row":
                sums = scale_rows(
                    sums, list_words[at.scale_a] + 4 * group_64 * list_words[scaled.scale_a_group],
                    list_words[scaled.scale_a_row], list_words[at.scale_b] + 4 * group_64 * list_words[at.scale_b_step],
                    list_words[scaled.scale_b_n], m, n, size - m, N - n, True,
                )  # fmt: skip
            elif SCALING != "block":
                scale_a = load_scale(list_words[at.scale_a], 0, True, SCALING)
                scale_b = load_scale(list_words[at.scale_b], group_64 * list_words[at.scale_b_step], True, SCALING)
                sums = apply_scaling(sums, scale_a, scale_b, SCALING)
            if list_words[at.bias] != 0:
                bias = list_words[at.bias] + group_64 * list_words[at.bias_row] * (OUT.primitive_bitwidth // 8)
                sums = add_bias(sums, bias, list_words[at.bias_col], n, N - n, OUT)
            store(c, sums, m, n, size - m, N - n, c_row, c_col, LAYOUT)
            tile += tl.num_programs(0)
