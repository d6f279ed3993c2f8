"""`hopper_ragged_k_block_scales`: C[g] = A[:, K of g] @ B[K of g, :] of fp8 with scales of blocks along K, the weight
gradients of a MoE layer; sm_90, in Gluon.

`hopper_ragged_k` where groups start at whole blocks of 128 (schedules/ragged_k_blocks.py), with scales of rows and of
columns for each k-tile (k_scales.py). Sums of float32 may be added to C, by TMA (matrices.py) or where K is little by
the consumers (addends.py), and may be those of a part of a group's K alone. The only record is SCALED_K_DESCRIPTORS of
aot/spec/records.py, which csrc/forms/grouped_k_record.cpp writes.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ..epilogues.linear import Linear
from .addends import addend_slots
from .k_scales import make_k_scales, run_k_scaled
from .mixed import with_dtype_of_b
from .promotion import SCALED_ARRIVALS
from .schedules.ragged_k_blocks import RaggedKBlocksSchedule
from .tiling import make_tiling
from .work import make_work


@gluon.jit
def hopper_ragged_k_block_scales(
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
    """One CTA of a persistent grid. Needs pointers on 16 bytes; 16 bytes divide leading strides, C's rows and the
    stride of its matrices; K is contiguous in A and B; groups, rows, columns and depth > 0; scales of both."""
    gl.static_assert(LAYOUT == "nt", "K has to be the inner dimension of both operands")
    tiling = make_tiling(DTYPE, OUT, LAYOUT, BLOCK_M, BLOCK_N, BLOCK_K, STAGES, RASTER, CONSUMERS, SPLIT, SLICES, 1)
    ADDEND_SLOTS: gl.constexpr = addend_slots(tiling) if tiling.B_PANELS > 1 else 0
    schedule = RaggedKBlocksSchedule(groups, rows, columns, depth, tiling, BY_VALUE, SCALED_ARRIVALS, ADDEND_SLOTS)
    run_k_scaled(with_dtype_of_b(make_work(schedule, tiling, make_k_scales(tiling), Linear())))
