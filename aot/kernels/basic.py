"""`basic`: C[g] = A[g] @ B[g] through pointers and cp.async, any stride and alignment; sm_80 and later.

Rows and columns past a group's edge are clamped to its first row or column, so that the main loop needs no mask;
what they compute is masked out of the store. The tail of K is one masked step after the loop.
"""

import triton
import triton.language as tl

from .schedule import extent, find_group, group_tiles, list_address, record_address, tile_position, word


@triton.jit
def _pointer(address, DTYPE: tl.constexpr, ALIGNED: tl.constexpr, GENERIC: tl.constexpr):
    pointer = word(address, GENERIC).to(tl.pointer_type(DTYPE))
    return tl.multiple_of(pointer, 16) if ALIGNED else pointer


@triton.jit
def _leading(address, ALIGNED: tl.constexpr, GENERIC: tl.constexpr):
    stride = word(address, GENERIC)
    return tl.multiple_of(stride, 8) if ALIGNED else stride


@triton.jit
def _clamped(start, size, BLOCK: tl.constexpr, ALIGNED: tl.constexpr):
    """BLOCK indices from `start`, those past `size` replaced by 0. ALIGNED promises that 8 divides `size`."""
    index = start + tl.arange(0, BLOCK)
    index = tl.where(index < size, index, 0)
    return tl.max_contiguous(tl.multiple_of(index, 8), 8) if ALIGNED else index


@triton.jit
def basic(
    list_words,
    problems,
    groups,
    tiles,
    DTYPE: tl.constexpr,
    LAYOUT: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    RASTER: tl.constexpr,
    BY_VALUE: tl.constexpr,
):
    """One CTA of a persistent grid: every `num_programs`-th tile of the list.

    LAYOUT "nn", "nt", "tn", "tt": A with K or M contiguous, B with N or K contiguous; "strided": neither is known.
    ALIGNED: pointers on 16 bytes, and 8 divides leading strides and contiguous extents.
    """
    GENERIC: tl.constexpr = BY_VALUE is not None
    base = list_address(problems, BY_VALUE)
    tile = tl.program_id(0)
    while tile < tiles:
        group = find_group(base, groups, tile, GENERIC)
        first, _ = group_tiles(base, group, GENERIC)
        record = record_address(base, groups, group)
        M = extent(record + 72, ALIGNED and LAYOUT[0] == "t", GENERIC)
        N = extent(record + 80, ALIGNED, GENERIC)
        K = extent(record + 88, ALIGNED and (LAYOUT[0] == "n" or LAYOUT[1] == "t"), GENERIC)

        a = _pointer(record, DTYPE, ALIGNED, GENERIC)
        b = _pointer(record + 8, DTYPE, ALIGNED, GENERIC)
        c = _pointer(record + 16, DTYPE, ALIGNED, GENERIC)
        if LAYOUT == "strided":
            a_row, a_col = word(record + 24, GENERIC), word(record + 32, GENERIC)
            b_row, b_col = word(record + 40, GENERIC), word(record + 48, GENERIC)
        else:
            if LAYOUT[0] == "n":
                a_row, a_col = _leading(record + 24, ALIGNED, GENERIC), 1
            else:
                a_row, a_col = 1, _leading(record + 32, ALIGNED, GENERIC)
            if LAYOUT[1] == "n":
                b_row, b_col = _leading(record + 40, ALIGNED, GENERIC), 1
            else:
                b_row, b_col = 1, _leading(record + 48, ALIGNED, GENERIC)

        tile_row, tile_column = tile_position(tile - first, M, N, BLOCK_M, BLOCK_N, RASTER)
        rows = _clamped(tile_row * BLOCK_M, M, BLOCK_M, ALIGNED and LAYOUT[0] == "t")
        columns = _clamped(tile_column * BLOCK_N, N, BLOCK_N, ALIGNED and LAYOUT[1] == "n")
        depth = tl.arange(0, BLOCK_K)
        a_block = a + rows[:, None].to(tl.int64) * a_row + depth[None, :].to(tl.int64) * a_col
        b_block = b + depth[:, None].to(tl.int64) * b_row + columns[None, :].to(tl.int64) * b_col

        accumulator = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        steps = K // BLOCK_K
        for _ in range(0, steps):
            accumulator = tl.dot(tl.load(a_block), tl.load(b_block), accumulator)
            a_block += BLOCK_K * a_col
            b_block += BLOCK_K * b_row
        rest = K - steps * BLOCK_K
        if rest > 0:
            a_tail = tl.load(a_block, mask=depth[None, :] < rest, other=0.0)
            b_tail = tl.load(b_block, mask=depth[:, None] < rest, other=0.0)
            accumulator = tl.dot(a_tail, b_tail, accumulator)

        out_rows = tile_row * BLOCK_M + tl.arange(0, BLOCK_M)
        out_columns = tile_column * BLOCK_N + tl.arange(0, BLOCK_N)
        inside = (out_rows[:, None] < M) & (out_columns[None, :] < N)
        c_row = _leading(record + 56, ALIGNED, GENERIC)
        if LAYOUT == "strided":
            c_block = c + out_rows[:, None].to(tl.int64) * c_row + out_columns[None, :].to(tl.int64) * word(record + 64, GENERIC)
        else:
            c_block = c + out_rows[:, None].to(tl.int64) * c_row + out_columns[None, :]
        tl.store(c_block, accumulator.to(DTYPE), mask=inside)
        tile += tl.num_programs(0)
