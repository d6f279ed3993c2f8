"""`basic_scaled`: C[g] = A[g] @ B[g] of e4m3 lists with scales by row and column, or by block; any strides; sm_90.

As `basic`, with SCALED_LIST_POINTERS of aot/spec/records.py for a group.
"""

import triton
import triton.language as tl

from ..records import scaled_list_pointers as at
from ..schedule import find_group, group_tiles, list_address, tile_position, word
from .scales import BLOCK, product_of_blocks, scale_rows
from .tile import product, store


@triton.jit
def basic_scaled(
    list_words,
    problems,
    groups,
    tiles,
    DTYPE: tl.constexpr,
    OUT: tl.constexpr,
    LAYOUT: tl.constexpr,
    ALIGNED: tl.constexpr,
    SCALING: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    RASTER: tl.constexpr,
    BY_VALUE: tl.constexpr,
):
    """One CTA of a persistent grid: every `num_programs`-th tile of the list."""
    GENERIC: tl.constexpr = BY_VALUE is not None
    base = list_address(problems, BY_VALUE)
    tile = tl.program_id(0)
    while tile < tiles:
        group = find_group(base, groups, tile, GENERIC)
        first, _ = group_tiles(base, group, GENERIC)
        record = base + groups.to(tl.int64) * 8 + group.to(tl.int64) * at.size
        M = word(record + at.m, GENERIC).to(tl.int32)
        N = word(record + at.n, GENERIC).to(tl.int32)
        K = word(record + at.k, GENERIC).to(tl.int32)
        a = word(record + at.a, GENERIC).to(tl.pointer_type(DTYPE))
        b = word(record + at.b, GENERIC).to(tl.pointer_type(DTYPE))
        c = word(record + at.c, GENERIC).to(tl.pointer_type(OUT))
        a_row, a_col = word(record + at.a_row, GENERIC), word(record + at.a_col, GENERIC)
        b_row, b_col = word(record + at.b_row, GENERIC), word(record + at.b_col, GENERIC)
        c_row, c_col = word(record + at.c_row, GENERIC), word(record + at.c_col, GENERIC)
        scale_a, scale_a_row = word(record + at.scale_a, GENERIC), word(record + at.scale_a_row, GENERIC)
        scale_b, scale_b_n = word(record + at.scale_b, GENERIC), word(record + at.scale_b_n, GENERIC)

        m_tile, n_tile = tile_position(tile - first, M, N, BLOCK_M, BLOCK_N, RASTER)
        m, n = m_tile * BLOCK_M, n_tile * BLOCK_N
        if SCALING == "block":
            tl.static_assert(BLOCK_N <= BLOCK)
            sums = product_of_blocks(
                a, b, m, n, M - m, N - n, K, a_row, a_col, b_row, b_col,
                scale_a, scale_a_row, word(record + at.scale_a_k, GENERIC),
                scale_b + 4 * (n // BLOCK * scale_b_n), word(record + at.scale_b_k, GENERIC),
                LAYOUT, ALIGNED, BLOCK_M, BLOCK_N, BLOCK_K,
            )  # fmt: skip
        else:
            tl.static_assert(SCALING == "row", "aot/kernels/pointer/basic.py has the other scale modes")
            sums = product(
                a, b, m, n, M - m, N - n, K, a_row, a_col, b_row, b_col,
                LAYOUT, ALIGNED, BLOCK_M, BLOCK_N, BLOCK_K,
            )  # fmt: skip
            sums = scale_rows(sums, scale_a, scale_a_row, scale_b, scale_b_n, m, n, M - m, N - n, True)
        store(c, sums, m, n, M - m, N - n, c_row, c_col, LAYOUT)
        tile += tl.num_programs(0)
