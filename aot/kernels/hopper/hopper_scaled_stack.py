"""`hopper_scaled_stack`: e4m3 C[g] = A[g] @ B[g] with scales by tensor, by row and column, or by block, in Gluon for
sm_90.

`hopper_stack` with the scales in shared memory (scale_ring.py) and sums promoted in parts (promotion.py). This file
puts the kernel together. The only record is SCALED_STACK_DESCRIPTORS of aot/spec/records.py, with scales by tensor
GROUPED_DESCRIPTORS, which csrc/forms/stack_record.cpp writes.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ..epilogues import make_epilogue
from ..records import grouped_descriptors
from .promotion import SCALED_ARRIVALS, run_scaled
from .record import parameters_address, word
from .scale_ring import make_scale_ring
from .schedules.stack import StackSchedule
from .tiling import make_tiling
from .work import make_work


@gluon.jit
def hopper_scaled_stack(
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
    BY_VALUE: gl.constexpr,
):
    """One CTA of a persistent grid. `rows`: of each matrix.

    Needs pointers on 16 bytes; 16 bytes divide leading strides, those of groups and rows of C; K > 0.
    """
    base = parameters_address(BY_VALUE)
    epilogue = make_epilogue(EPILOGUE)
    tiling = make_tiling(
        DTYPE, OUT, LAYOUT, BLOCK_M, BLOCK_N, BLOCK_K, STAGES, RASTER, CONSUMERS, SPLIT, SLICES,
        epilogue.SUMS_PER_OUTPUT,
    )  # fmt: skip
    counts = word(base + grouped_descriptors.offs)
    schedule = StackSchedule(base, groups, rows, columns, depth, counts, tiling, ARRIVALS=SCALED_ARRIVALS)
    run_scaled(make_work(schedule, tiling, make_scale_ring(SCALING, tiling), epilogue))
