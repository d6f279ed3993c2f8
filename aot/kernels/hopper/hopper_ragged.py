"""`hopper_ragged`: C = A @ B[g] for the rows of A that belong to group g, in Gluon for sm_90.

`offs` says on the device where the groups end, so that a captured launch takes any split. Its only record is
GROUPED_DESCRIPTORS of aot/spec/abi.py, which csrc/forms/grouped_record.cpp writes. B's descriptor is that of a stack.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ..records import grouped_descriptors
from .pipeline import run
from .tiles import parameters_address, word
from .work import make_work


@gluon.jit
def hopper_ragged(
    list_words,
    groups,
    rows,
    columns,
    depth,
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
    """One CTA of a persistent grid. Needs pointers on 16 bytes; 16 bytes divide leading strides and C's rows; K > 0."""
    base = parameters_address(BY_VALUE)
    offs = word(base + grouped_descriptors.offs)
    work = make_work(
        base, groups, rows, columns, depth, offs, gl.to_tensor(False),
        DTYPE, OUT, True, SCALING, LAYOUT, BLOCK_M, BLOCK_N, BLOCK_K, STAGES, RASTER, CONSUMERS, SPLIT, SLICES,
    )  # fmt: skip
    run(work)
