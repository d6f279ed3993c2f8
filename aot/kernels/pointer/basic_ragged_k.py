"""`basic_ragged_k`: C[g] = A[:, K of g] @ B[K of g, :], the weight gradients of a MoE layer; sm_80 and later.

As `basic`, with ragged K: `offs` says on the device where each group's K ends. It serves what `hopper_ragged_k` cannot:
matrices with K contiguous, in which a group may start at an address of any kind. A launch has one record,
GROUPED_K_POINTERS of aot/spec/records.py, in its parameters `list_words`.

Each group has a matrix of C, or with `splits` above 1 one for each part of its K; all have the same tiles.
"""

import triton
import triton.language as tl

from ..addressing import typed_pointer, whole
from ..factor import load_factor
from ..records import grouped_k_pointers_in_words as at
from ..schedule import tile_position
from ..sizes import ceil_div
from .ragged_m import SCAN_WINDOW, group_ends
from .tile import product, store

# A part of a split group is this deep or a multiple of it, whatever the kernel: csrc and the tests count so too.
_SPLIT_UNIT = tl.constexpr(64)


@triton.jit
def whole_16_bytes(stride, OUT: tl.constexpr, ALIGNED: tl.constexpr):
    """A stride of C, of which ALIGNED guarantees whole 16 bytes: 4 elements of float32, 8 of the others."""
    UNIT: tl.constexpr = 128 // OUT.primitive_bitwidth
    return stride // UNIT * UNIT if ALIGNED else stride


@triton.jit
def part_of_group(start, stop, part, splits):
    """The K of a part of the group [start, stop): of its own only, and empty where the parts before it have all."""
    K = stop.to(tl.int64) - start
    chunk = ((K + splits - 1) // splits + _SPLIT_UNIT - 1) // _SPLIT_UNIT * _SPLIT_UNIT
    first = tl.minimum(part * chunk, K)
    return start + first, tl.minimum(chunk, K - first).to(tl.int32)


@triton.jit
def basic_ragged_k(
    list_words,
    groups,
    rows,
    columns,
    depth,
    DTYPE: tl.constexpr,
    OUT: tl.constexpr,
    LAYOUT: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    RASTER: tl.constexpr,
):
    """One CTA of a persistent grid: every `num_programs`-th tile, matrix by matrix of C.

    LAYOUT "nn", "nt", "tn", "tt": A with K or M contiguous, B with N or K contiguous; "strided": neither is known.
    ALIGNED (tn alone): pointers on 16 bytes; M, N, leading strides and the stride of C's matrices of whole 16 bytes.
    """
    a = typed_pointer(list_words[at.a], DTYPE, ALIGNED)
    b = typed_pointer(list_words[at.b], DTYPE, ALIGNED)
    c = typed_pointer(list_words[at.c], OUT, ALIGNED)
    offs = list_words[at.offs].to(tl.pointer_type(tl.int32))
    splits = list_words[at.splits].to(tl.int32)
    M, N = whole(rows, ALIGNED), whole(columns, ALIGNED)
    tiles = ceil_div(M, BLOCK_M) * ceil_div(N, BLOCK_N)  # of a matrix of C

    tile = tl.program_id(0)
    ended = 0  # where the groups of the windows so far end
    for first_group in range(0, groups, SCAN_WINDOW):
        lane = tl.arange(0, SCAN_WINDOW)
        ends = group_ends(offs, first_group + lane, groups, depth, ended, 0)
        before = ended
        past_window = tl.minimum(groups - first_group, SCAN_WINDOW) + first_group
        ended = tl.max(tl.where(lane < groups - first_group, ends, 0))
        while tile < past_window * splits * tiles:
            matrix = tile // tiles
            group = matrix // splits - first_group
            stop = tl.max(tl.where(lane <= group, ends, before))
            start = tl.max(tl.where(lane < group, ends, before))
            k, K = part_of_group(start, stop, matrix % splits, splits)
            # Always 0, which no compiler sees: else products of strides and indices are taken out of the loop over the
            # tiles, live in registers all through it, and make them spill.
            zero = tl.minimum(tile, 0).to(tl.int64)
            a_row, a_col = whole(list_words[at.a_row] + zero, ALIGNED), whole(list_words[at.a_col] + zero, ALIGNED)
            b_row, b_col = whole(list_words[at.b_row] + zero, ALIGNED), whole(list_words[at.b_col] + zero, ALIGNED)
            c_row, c_col = whole_16_bytes(list_words[at.c_row] + zero, OUT, ALIGNED), list_words[at.c_col] + zero
            c_matrix = c + matrix.to(tl.int64) * whole_16_bytes(list_words[at.c_group], OUT, ALIGNED)
            # A stride of 1, which no kernel reads from the record.
            a_step = 1 if LAYOUT[0] == "n" else a_col
            b_step = 1 if LAYOUT == "nt" or LAYOUT == "tt" else b_row

            m_tile, n_tile = tile_position(tile - matrix * tiles, M, N, BLOCK_M, BLOCK_N, RASTER)
            m, n = m_tile * BLOCK_M, n_tile * BLOCK_N
            sums = product(
                a + k * a_step, b + k * b_step, m, n, M - m, N - n, K, a_row, a_col, b_row, b_col,
                LAYOUT, ALIGNED, BLOCK_M, BLOCK_N, BLOCK_K,
            )  # fmt: skip
            sums *= load_factor(list_words[at.alpha_at], list_words[at.alpha_bits])
            store(c_matrix, sums, m, n, M - m, N - n, c_row, c_col, LAYOUT)
            tile += tl.num_programs(0)
