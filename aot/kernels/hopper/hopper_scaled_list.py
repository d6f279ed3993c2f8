"""`hopper_scaled_list`: fp8 C[g] = A[g] @ B[g] for a problem list, with scales by tensor, by row and column, or by
block, in Gluon for sm_90.

As `hopper`, with the scales and the promotion of `hopper_scaled`. This file puts the kernel together:
schedules/list.py, scale_ring.py, promotion.py. Records are SCALED_LIST_DESCRIPTORS of aot/spec/records.py, or with
scales by tensor LIST_DESCRIPTORS, which csrc/forms/list_record.cpp writes.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ..epilogues import make_epilogue
from ..records import list_descriptors, scaled_descriptors, scaled_list_descriptors
from .promotion import SCALED_ARRIVALS, run_scaled
from .record import parameters_address
from .scale_ring import make_scale_ring
from .schedules.list import ListSchedule
from .tiling import make_tiling
from .work import make_work


@gluon.jit
def hopper_scaled_list(
    list_words,
    problems,
    groups,
    tiles,
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
    """One CTA of a persistent grid. Needs pointers on 16 bytes; 16 bytes divide leading strides and rows of C; K > 0.

    The list is at `problems`, or if that is 0 in the first parameter, `list_words`.
    """
    gl.static_assert(scaled_list_descriptors.scale_a == scaled_descriptors.scale_a)
    gl.static_assert(scaled_list_descriptors.scale_b_k == scaled_descriptors.scale_b_k, "and what lies between")
    RECORD_BYTES: gl.constexpr = list_descriptors.size if SCALING == "tensor" else scaled_list_descriptors.size
    base = gl.where(problems == 0, parameters_address(BY_VALUE), problems)
    epilogue = make_epilogue(EPILOGUE)
    tiling = make_tiling(
        DTYPE, OUT, LAYOUT, BLOCK_M, BLOCK_N, BLOCK_K, STAGES, RASTER, CONSUMERS, SPLIT, SLICES,
        epilogue.SUMS_PER_OUTPUT,
    )  # fmt: skip
    schedule = ListSchedule(base, groups, problems != 0, tiling, RECORD_BYTES, ARRIVALS=SCALED_ARRIVALS)
    run_scaled(make_work(schedule, tiling, make_scale_ring(SCALING, tiling), epilogue))
