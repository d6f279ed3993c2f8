"""`basic_ragged_k_block_scales`: C[g] = A[:, K of g] @ B[K of g, :] of fp8, with scales of blocks along K; sm_90.

As `basic_ragged_k`, and the products of each 128 of K, counted from a group's start, are multiplied by a scale of their
row of A and one of their column of B before they are summed. It serves what `hopper_ragged_k_block_scales` cannot: any
strides, and groups that end anywhere. Blocks of all groups lie one behind the other, so a group's first one is found by
counting those of the groups before it. A launch has one record, SCALED_K_POINTERS of aot/spec/records.py.
"""

import triton
import triton.language as tl

from ..addressing import typed_pointer
from ..factor import load_factor
from ..mixed import dtype_of_b
from ..records import scaled_k_pointers_in_words as at
from ..schedule import tile_position
from ..sizes import ceil_div
from .ragged_m import SCAN_WINDOW, group_ends
from .scales import BLOCK
from .tile import product, store


@triton.jit
def aligned_ends(offs, index, groups, K, before, ALIGNMENT):
    """As group_ends, each as the next multiple of ALIGNMENT, a power of two; K is one whatever it is."""
    ends = group_ends(offs, index, groups, K, before, 0)
    return ends + tl.minimum(-ends & (ALIGNMENT - 1), K - ends)


@triton.jit
def blocks_of_part(start, stop, part, splits):
    """Blocks [first, first + count) of the group [start, stop) that a part of it has: none where it is used up."""
    blocks = ceil_div(stop - start, BLOCK)
    chunk = ceil_div(blocks, splits)
    first = tl.minimum(part.to(tl.int64) * chunk, blocks).to(tl.int32)
    return first, tl.minimum(chunk, blocks - first)


@triton.jit
def scales_at(address, index, left):
    """Elements of a float32 array, of which `left` exist; 1 past them, and where it is left out."""
    inside = tl.arange(0, index.shape[0]) < tl.where(address != 0, left, 0)
    return tl.load(address.to(tl.pointer_type(tl.float32)) + index, mask=inside, other=1.0)


@triton.jit
def basic_ragged_k_block_scales(
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
    """One CTA of a persistent grid: every `num_programs`-th tile, matrix by matrix of C.

    A block that the scales do not have takes the last one's: no other memory is read, whatever the ends.
    """
    tl.static_assert(LAYOUT == "strided" and BLOCK_K <= BLOCK)
    a = typed_pointer(list_words[at.a], DTYPE, False)
    b = typed_pointer(list_words[at.b], dtype_of_b(DTYPE), False)
    c = typed_pointer(list_words[at.c], OUT, False)
    offs = list_words[at.offs].to(tl.pointer_type(tl.int32))
    splits = list_words[at.splits].to(tl.int32)
    alignment = list_words[at.k_alignment].to(tl.int32)
    tiles = ceil_div(rows, BLOCK_M) * ceil_div(columns, BLOCK_N)  # of a matrix of C

    tile = tl.program_id(0)
    ended = 0  # where the groups of the windows so far end
    counted = 0  # their blocks
    for first_group in range(0, groups, SCAN_WINDOW):
        lane = tl.arange(0, SCAN_WINDOW)
        in_window = lane < groups - first_group
        starts = aligned_ends(offs, first_group + lane - 1, groups, depth, ended, alignment)
        ends = aligned_ends(offs, first_group + lane, groups, depth, ended, alignment)
        blocks = tl.where(in_window, ceil_div(ends - starts, BLOCK), 0)
        before = counted
        past_window = tl.minimum(groups - first_group, SCAN_WINDOW) + first_group
        ended = tl.max(tl.where(in_window, ends, 0))
        counted += tl.sum(blocks)
        while tile < past_window * splits * tiles:
            matrix = tile // tiles
            group = matrix // splits - first_group
            start = tl.max(tl.where(lane == group, starts, 0))
            stop = tl.max(tl.where(lane == group, ends, 0))
            first, count = blocks_of_part(start, stop, matrix % splits, splits)
            first_scale = before + tl.sum(tl.where(lane < group, blocks, 0)) + first
            k = start.to(tl.int64) + first.to(tl.int64) * BLOCK
            # Always 0, which no compiler sees: else products of strides and indices are taken out of the loop over the
            # tiles, live in registers all through it, and make them spill.
            zero = tl.minimum(tile, 0).to(tl.int64)
            a_row, a_col = list_words[at.a_row] + zero, list_words[at.a_col] + zero
            b_row, b_col = list_words[at.b_row] + zero, list_words[at.b_col] + zero
            c_row, c_col = list_words[at.c_row] + zero, list_words[at.c_col] + zero

            m_tile, n_tile = tile_position(tile - matrix * tiles, rows, columns, BLOCK_M, BLOCK_N, RASTER)
            m, n = m_tile * BLOCK_M, n_tile * BLOCK_N
            of_rows = (m + tl.arange(0, BLOCK_M)).to(tl.int64) * list_words[at.scale_a_row]
            of_columns = (n + tl.arange(0, BLOCK_N)).to(tl.int64) * list_words[at.scale_b_n]
            sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
            for i in range(0, count):
                inner = k + tl.cast(i, tl.int64) * BLOCK
                part = product(
                    a + inner * a_col, b + inner * b_row, m, n, rows - m, columns - n,
                    tl.minimum(stop - inner, BLOCK).to(tl.int32), a_row, a_col, b_row, b_col,
                    LAYOUT, False, BLOCK_M, BLOCK_N, BLOCK_K,
                )  # fmt: skip
                block = tl.minimum(tl.cast(first_scale + i, tl.int64), list_words[at.scale_blocks] - 1)
                of_a = scales_at(list_words[at.scale_a], of_rows + block * list_words[at.scale_a_k], rows - m)
                of_b = scales_at(list_words[at.scale_b], of_columns + block * list_words[at.scale_b_k], columns - n)
                sums += part * (of_a[:, None] * of_b[None, :])
            sums *= load_factor(list_words[at.alpha_at], list_words[at.alpha_bits])
            c_matrix = c + matrix.to(tl.int64) * list_words[at.c_group]
            store(c_matrix, sums, m, n, rows - m, columns - n, c_row, c_col, LAYOUT)
            tile += tl.num_programs(0)
