"""`tma`: C[g] = A[g] @ B[g] through TMA descriptors that each CTA makes on the device for a group at a time; sm_90.

The second of three kernels for lists, after `basic`. The Tensor Memory Accelerator loads a whole tile for one
instruction of one thread: no address arithmetic, no masks, zeros past the edge, swizzled for wgmma. Making descriptors
in the kernel is the technique of the TMA variant in Triton's tutorial "Group GEMM".

What it leaves: a CTA drains its pipeline and writes descriptors to global memory whenever it meets another group. Made
on the host instead, they brought 64 ragged problems from 291 to 228 µs and 256 from 78 to 42 µs on an H200
(benchmarks/notes/lists.md): that is `hopper`.

A descriptor's scratch slot is rewritten only after every load that used it was consumed by a product. C goes out
through pointers. So no TMA operation is in flight when the next descriptor is made.
"""

import triton
import triton.language as tl

from ..pointer.tile import store
from ..records import list_pointers
from ..schedule import extent, find_group, group_tiles, list_address, record_address, tile_position, word


@triton.jit
def tma(
    list_words,
    problems,
    groups,
    tiles,
    DTYPE: tl.constexpr,
    OUT: tl.constexpr,
    LAYOUT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    RASTER: tl.constexpr,
    BY_VALUE: tl.constexpr,
):
    """One CTA of a persistent grid. Needs pointers on 16 bytes; 8 divides leading strides and N; any M, and K > 0.

    LAYOUT "nn", "nt", "tn", "tt": A with K or M contiguous, B with N or K contiguous. C has N contiguous.
    """
    GENERIC: tl.constexpr = BY_VALUE is not None
    base = list_address(problems, BY_VALUE)
    tile = tl.program_id(0)
    while tile < tiles:
        group = find_group(base, groups, tile, GENERIC)
        first, end = group_tiles(base, group, GENERIC)
        record = record_address(base, groups, group)
        M = extent(record + list_pointers.m, False, GENERIC)
        N = extent(record + list_pointers.n, True, GENERIC)
        K = extent(record + list_pointers.k, False, GENERIC)
        a = word(record + list_pointers.a, GENERIC).to(tl.pointer_type(DTYPE))
        b = word(record + list_pointers.b, GENERIC).to(tl.pointer_type(DTYPE))
        c = tl.multiple_of(word(record + list_pointers.c, GENERIC).to(tl.pointer_type(OUT)), 16)
        c_row = tl.multiple_of(word(record + list_pointers.c_row, GENERIC), 8)
        if LAYOUT[0] == "n":
            a_row = word(record + list_pointers.a_row, GENERIC)
            a_tensor = tl.make_tensor_descriptor(a, [M, K], [a_row, 1], [BLOCK_M, BLOCK_K])
        else:
            a_col = word(record + list_pointers.a_col, GENERIC)
            a_tensor = tl.make_tensor_descriptor(a, [K, M], [a_col, 1], [BLOCK_K, BLOCK_M])
        if LAYOUT[1] == "n":
            b_row = word(record + list_pointers.b_row, GENERIC)
            b_tensor = tl.make_tensor_descriptor(b, [K, N], [b_row, 1], [BLOCK_K, BLOCK_N])
        else:
            b_col = word(record + list_pointers.b_col, GENERIC)
            b_tensor = tl.make_tensor_descriptor(b, [N, K], [b_col, 1], [BLOCK_N, BLOCK_K])

        while tile < end:
            m_tile, n_tile = tile_position(tile - first, M, N, BLOCK_M, BLOCK_N, RASTER)
            m, n = m_tile * BLOCK_M, n_tile * BLOCK_N
            sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
            for k in range(0, K, BLOCK_K):
                if LAYOUT[0] == "n":
                    a_block = a_tensor.load([m, k])
                else:
                    a_block = a_tensor.load([k, m]).T
                if LAYOUT[1] == "n":
                    b_block = b_tensor.load([k, n])
                else:
                    b_block = b_tensor.load([n, k]).T
                sums = tl.dot(a_block, b_block, sums)
            store(c, sums, m, n, M - m, N - n, c_row, 1, LAYOUT)
            tile += tl.num_programs(0)
