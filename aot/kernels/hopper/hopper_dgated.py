"""`hopper_dgated`: the gradient of a down projection and of the gated activation before it, in Gluon for sm_90.

dh = A[index] @ B[g] is summed as `hopper_gather` does. What is written is the gradient of the pre-activation z and the
weighted output of the activation, both of which need z, and of each tile of columns the row sums that gradients of the
rows' weights are made of. The only record is GRADIENT_DESCRIPTORS of aot/spec/records.py, which
csrc/forms/grouped_record.cpp writes.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ..records import grouped_descriptors
from .gather import GATHER_WARPS
from .gradient import make_gradient_work, run_gradient
from .record import parameters_address, word
from .scaling import make_scaling
from .schedules.ragged_m import RaggedMSchedule
from .tiling import make_tiling


@gluon.jit
def hopper_dgated(
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
    BY_VALUE: gl.constexpr,
):
    """One CTA of a persistent grid. Needs pointers on 16 bytes; 16 bytes divide leading strides and C's rows; K > 0."""
    base = parameters_address(BY_VALUE)
    tiling = make_tiling(
        DTYPE, OUT, LAYOUT, BLOCK_M, BLOCK_N, BLOCK_K, STAGES, RASTER, CONSUMERS, SPLIT, 1, 1
    )  # fmt: skip
    offs = word(base + grouped_descriptors.offs)
    schedule = RaggedMSchedule(base, groups, rows, columns, depth, offs, tiling, True, 1 + 32 * GATHER_WARPS)
    run_gradient(make_gradient_work(schedule, tiling, make_scaling(SCALING, DTYPE)))
