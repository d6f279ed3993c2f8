"""`hopper_scaled`: fp8 C = A @ B[g] with scales by tensor, by row and column, or by block, for ragged M, in Gluon for
sm_90.

`hopper_ragged` with the scales in shared memory (scale_ring.py) and sums promoted in parts (promotion.py). This file
puts the kernel together. The only record is SCALED_DESCRIPTORS of aot/spec/records.py, with scales by tensor
GROUPED_DESCRIPTORS, or where rows come by an index GATHERED_SCALED_DESCRIPTORS, which csrc/forms/grouped_record.cpp
writes.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ..epilogues import make_epilogue
from ..records import grouped_descriptors
from .gather import GATHER_WARPS
from .mixed import with_dtype_of_b
from .promotion import SCALED_ARRIVALS, run_scaled
from .record import parameters_address, word
from .scale_ring import make_scale_ring
from .schedules.ragged_m import RaggedMSchedule
from .tiling import make_tiling
from .work import make_work


@gluon.jit
def hopper_scaled(
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
    CLUSTER: gl.constexpr,
    SOURCE: gl.constexpr,
    BY_VALUE: gl.constexpr,
):
    """One CTA of a persistent grid. Needs pointers on 16 bytes; 16 bytes divide leading strides and C's rows; K > 0."""
    base = parameters_address(BY_VALUE)
    epilogue = make_epilogue(EPILOGUE)
    tiling = make_tiling(
        DTYPE, OUT, LAYOUT, BLOCK_M, BLOCK_N, BLOCK_K, STAGES, RASTER, CONSUMERS, SPLIT, SLICES,
        epilogue.SUMS_PER_OUTPUT, CLUSTER,
    )  # fmt: skip
    offs = word(base + grouped_descriptors.offs)
    GATHERS: gl.constexpr = SOURCE == "indexed"
    ARRIVALS: gl.constexpr = 1 + 32 * GATHER_WARPS if GATHERS else SCALED_ARRIVALS
    schedule = RaggedMSchedule(base, groups, rows, columns, depth, offs, tiling, GATHERS, ARRIVALS)
    run_scaled(with_dtype_of_b(make_work(schedule, tiling, make_scale_ring(SCALING, tiling), epilogue)))
