"""`hopper_ragged_fitted`: C = A @ B[g] for the rows of A that belong to group g, in row tiles that fit their group.

As `hopper_ragged`, which has the schedule and the record too. How tall tiles are and how they are multiplied is in
hopper/fitted.py.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ..epilogues import make_epilogue
from ..records import grouped_descriptors
from .fitted import make_fitted_tiling, run_fitted
from .record import parameters_address, word
from .scaling import make_scaling
from .schedules.ragged_m import RaggedMSchedule
from .work import make_work


@gluon.jit
def hopper_ragged_fitted(
    list_words,
    groups,
    rows,
    columns,
    depth,
    DTYPE: gl.constexpr,
    OUT: gl.constexpr,
    SCALING: gl.constexpr,
    EPILOGUE: gl.constexpr,
    LAYOUT: gl.constexpr,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr,
    RASTER: gl.constexpr,
    CONSUMERS: gl.constexpr,
    SPLIT: gl.constexpr,
    SLICES: gl.constexpr,
    SOURCE: gl.constexpr,
    BY_VALUE: gl.constexpr,
):
    """One CTA of a persistent grid. Needs pointers on 16 bytes; 16 bytes divide leading strides and C's rows; K > 0."""
    gl.static_assert(SOURCE == "rows", "rows by an index are no box, whose last rows could be zeros")
    base = parameters_address(BY_VALUE)
    tiling = make_fitted_tiling(
        DTYPE, OUT, LAYOUT, BLOCK_M, BLOCK_N, BLOCK_K, STAGES, RASTER, CONSUMERS, SPLIT, SLICES
    )  # fmt: skip
    offs = word(base + grouped_descriptors.offs)
    schedule = RaggedMSchedule(base, groups, rows, columns, depth, offs, tiling, False, 1)
    run_fitted(make_work(schedule, tiling, make_scaling(SCALING, DTYPE), make_epilogue(EPILOGUE)))
