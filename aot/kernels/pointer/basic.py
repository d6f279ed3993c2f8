"""`basic`: C[g] = A[g] @ B[g] through pointers and cp.async, any stride and alignment; sm_80 and later.

The first of three kernels for lists that read as a course: `basic`, `tma`, `hopper`. Its technique is the persistent
grouped GEMM of Triton's tutorial "Group GEMM": the grid has as many CTAs as the GPU holds at once, and each takes every
`num_programs`-th tile of all problems together, so that one launch serves unlike problems and small ones fill the GPU.
Triton pipelines the loads with cp.async through `num_stages` buffers in shared memory.

What it leaves: every thread computes addresses and issues loads, and a product waits for loads of its own warps. On an
H200, 64 problems of 128×128×1024 take 12.7 µs here and 9.7 µs in `hopper` (benchmarks/notes/lists.md).
"""

import triton
import triton.language as tl

from ..records import list_pointers
from ..schedule import extent, find_group, group_tiles, list_address, record_address, tile_position, word
from .scaling import apply_scaling, load_scale
from .tile import product, store


@triton.jit
def _pointer(address, DTYPE: tl.constexpr, ALIGNED: tl.constexpr, GENERIC: tl.constexpr):
    pointer = word(address, GENERIC).to(tl.pointer_type(DTYPE))
    return tl.multiple_of(pointer, 16) if ALIGNED else pointer


@triton.jit
def _stride(address, ALIGNED: tl.constexpr, GENERIC: tl.constexpr):
    """A stride that is not known to be 1; ALIGNED guarantees that 8 divides it."""
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
        a_row = _stride(record + list_pointers.a_row, ALIGNED, GENERIC)
        a_col = _stride(record + list_pointers.a_col, ALIGNED, GENERIC)
        b_row = _stride(record + list_pointers.b_row, ALIGNED, GENERIC)
        b_col = _stride(record + list_pointers.b_col, ALIGNED, GENERIC)
        c_row = _stride(record + list_pointers.c_row, ALIGNED, GENERIC)
        c_col = _stride(record + list_pointers.c_col, ALIGNED, GENERIC)

        m_tile, n_tile = tile_position(tile - first, M, N, BLOCK_M, BLOCK_N, RASTER)
        m, n = m_tile * BLOCK_M, n_tile * BLOCK_N
        sums = product(
            a, b, m, n, M - m, N - n, K, a_row, a_col, b_row, b_col,
            LAYOUT, ALIGNED, BLOCK_M, BLOCK_N, BLOCK_K,
        )  # fmt: skip
        scale_a = load_scale(word(record + list_pointers.scale_a, GENERIC), 0, True, SCALING)
        scale_b = load_scale(word(record + list_pointers.scale_b, GENERIC), 0, True, SCALING)
        sums = apply_scaling(sums, scale_a, scale_b, SCALING)
        store(c, sums, m, n, M - m, N - n, c_row, c_col, LAYOUT)
        tile += tl.num_programs(0)
