"""`hopper_stack`: C[g] = A[g] @ B[g] for stacks of matrices of one size, warp-specialized, in Gluon for sm_90.

The pipeline and the epilogues of `hopper_ragged`. Where there are counts on the device, only so many rows of each group
are computed and written: the masked layout of DeepEP's low-latency mode and of DeepGEMM. Without, it is torch.bmm.

This file puts the kernel together; schedules/stack.py finds the tiles. The record is GROUPED_DESCRIPTORS of
aot/spec/records.py, and GATED_DESCRIPTORS with a gated epilogue; csrc/forms/stack_record.cpp writes it.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ..epilogues import make_epilogue
from ..records import grouped_descriptors
from .pipeline import run
from .record import parameters_address, word
from .scaling import make_scaling
from .schedules.stack import StackSchedule
from .tiling import make_tiling
from .work import make_work


@gluon.jit
def hopper_stack(
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
    schedule = StackSchedule(base, groups, rows, columns, depth, word(base + grouped_descriptors.offs), tiling)
    run(make_work(schedule, tiling, make_scaling(SCALING, DTYPE), epilogue))
