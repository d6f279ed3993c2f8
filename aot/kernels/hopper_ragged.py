"""`hopper_ragged`: C = A @ B[g] for the rows of A that belong to group g, in Gluon for sm_90.

`offs` says on the device where the groups end, so that a captured launch takes any split. Its only record has the
descriptors of A, of B as a stack of matrices and of C, then addresses and strides (csrc/ragged_words.cpp writes it):

    descriptors of A, B and C (16 words each), offs, bias, bias_row, bias_col, scale_a, scale_b, scale_b_step
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .hopper_pipeline import run
from .hopper_tiles import parameters_address, word
from .hopper_work import make_work


@gluon.jit
def hopper_ragged(
    list_words,
    groups,
    rows,
    columns,
    depth,
    DTYPE: gl.constexpr,
    OUT: gl.constexpr,
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
    """One CTA of a persistent grid. Needs pointers on 16 bytes; 16 bytes divide leading strides and C's rows; K > 0."""
    base = parameters_address(BY_VALUE)
    offs = word(base + 8 * 48)
    work = make_work(
        base, groups, rows, columns, depth, offs, gl.to_tensor(False),
        DTYPE, OUT, True, LAYOUT, BLOCK_M, BLOCK_N, BLOCK_K, STAGES, RASTER, CONSUMERS, SPLIT, SLICES,
    )  # fmt: skip
    run(work)
