"""`basic`: C[g] = A[g] @ B[g] through pointers and cp.async, any stride and alignment; sm_80 and later."""

import triton
import triton.language as tl

from ..records import list_pointers
from ..schedule import extent, find_group, group_tiles, list_address, record_address, tile_position, word
from .tile import product, scale, store


@triton.jit
def _pointer(address, DTYPE: tl.constexpr, ALIGNED: tl.constexpr, GENERIC: tl.constexpr):
    pointer = word(address, GENERIC).to(tl.pointer_type(DTYPE))
    return tl.multiple_of(pointer, 16) if ALIGNED else pointer


@triton.jit
def _stride(address, ALIGNED: tl.constexpr, GENERIC: tl.constexpr):
    """A stride that is not known to be 1; ALIGNED promises that 8 divides it."""
    stride = word(address, GENERIC)
    return tl.multiple_of(stride, 8) if ALIGNED else stride


@triton.jit
def basic(
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
    """One CTA of a persistent grid: every `num_programs`-th tile of the list.

    LAYOUT "nn", "nt", "tn", "tt": A with K or M contiguous, B with N or K contiguous; "strided": neither is known.
    ALIGNED: pointers on 16 bytes, and 8 divides leading strides and contiguous extents. SCALING: of aot/spec/abi.py.
    """
    GENERIC: tl.constexpr = BY_VALUE is not None
    base = list_address(problems, BY_VALUE)
    tile = tl.program_id(0)
    while tile < tiles:
        group = find_group(base, groups, tile, GENERIC)
        first, _ = group_tiles(base, group, GENERIC)
        record = record_address(base, groups, group)
        M = extent(record + list_pointers.m, ALIGNED and LAYOUT[0] == "t", GENERIC)
        N = extent(record + list_pointers.n, ALIGNED, GENERIC)
        K = extent(record + list_pointers.k, ALIGNED and (LAYOUT[0] == "n" or LAYOUT[1] == "t"), GENERIC)
        a = _pointer(record + list_pointers.a, DTYPE, ALIGNED, GENERIC)
        b = _pointer(record + list_pointers.b, DTYPE, ALIGNED, GENERIC)
        c = _pointer(record + list_pointers.c, OUT, ALIGNED, GENERIC)
        a_row, a_col = (
            _stride(record + list_pointers.a_row, ALIGNED, GENERIC),
            _stride(record + list_pointers.a_col, ALIGNED, GENERIC),
        )
        b_row, b_col = (
            _stride(record + list_pointers.b_row, ALIGNED, GENERIC),
            _stride(record + list_pointers.b_col, ALIGNED, GENERIC),
        )
        c_row, c_col = (
            _stride(record + list_pointers.c_row, ALIGNED, GENERIC),
            _stride(record + list_pointers.c_col, ALIGNED, GENERIC),
        )

        tile_row, tile_column = tile_position(tile - first, M, N, BLOCK_M, BLOCK_N, RASTER)
        row, column = tile_row * BLOCK_M, tile_column * BLOCK_N
        sums = product(
            a, b, row, column, M - row, N - column, K, a_row, a_col, b_row, b_col,
            LAYOUT, ALIGNED, BLOCK_M, BLOCK_N, BLOCK_K,
        )  # fmt: skip
        if SCALING == "tensor":
            sums *= scale(word(record + list_pointers.scale_a, GENERIC), 0, True) * scale(
                word(record + list_pointers.scale_b, GENERIC), 0, True
            )
        store(c, sums, row, column, M - row, N - column, c_row, c_col, LAYOUT)
        tile += tl.num_programs(0)
