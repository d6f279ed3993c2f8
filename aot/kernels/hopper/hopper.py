"""`hopper`: C[g] = A[g] @ B[g] for a problem list, in Gluon for sm_90.

ends[groups]              cumulative tile counts, filled up to whole 64 bytes
record[groups]            LIST_DESCRIPTORS of aot/spec/abi.py
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .pipeline import run
from .tiles import parameters_address
from .work import make_work


@gluon.jit
def hopper(
    list_words,
    problems,
    groups,
    tiles,
    DTYPE: gl.constexpr,
    OUT: gl.constexpr,
    SCALING: gl.constexpr,
    LAYOUT: gl.constexpr,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr,
    RASTER: gl.constexpr,
    CONSUMERS: gl.constexpr,
    SPLIT: gl.constexpr,
    SLICES: gl.constexpr,
    BY_VALUE: gl.constexpr,
):
    """One CTA of a persistent grid. Needs pointers on 16 bytes; 16 bytes divide leading strides and rows of C; K > 0.

    CONSUMERS 1: all warps on one tile; 2: two groups of warps on alternate tiles or, with SPLIT 2, on the halves of
    one. SLICES: parts that a tile is written out in. Tiles with BLOCK_M below 64 are summed as their transposes.
    """
    base = gl.where(problems == 0, parameters_address(BY_VALUE), problems)
    zero = gl.to_tensor(0)
    work = make_work(
        base, groups, zero, zero, zero, zero, problems != 0,
        DTYPE, OUT, False, SCALING, LAYOUT, BLOCK_M, BLOCK_N, BLOCK_K, STAGES, RASTER, CONSUMERS, SPLIT, SLICES,
    )  # fmt: skip
    run(work)
