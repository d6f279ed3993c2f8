"""`hopper_scaled_gated`: e4m3 rows and their 1x128 scales of activation(gate, up), where gate and up are A @ B[g] with
scales by block, for ragged M, in Gluon for sm_90.

`hopper_scaled` with a gated epilogue that quantizes (epilogues/gated_quantized.py), and rows of A and their scales by
an index where the source is "indexed". This file puts the kernel together; its pipeline is gated_scales.py. The only
record is GATED_SCALED_DESCRIPTORS of aot/spec/records.py, which csrc/forms/grouped_record.cpp writes.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ..epilogues import make_epilogue
from ..records import grouped_descriptors
from .gated_scales import make_gated_scales, run_gated
from .gather import GATHER_WARPS
from .promotion import SCALED_ARRIVALS
from .record import parameters_address, word
from .schedules.ragged_m import RaggedMSchedule
from .tiling import make_tiling
from .work import make_work


@gluon.jit
def hopper_scaled_gated(
    list_words,
    groups,
    rows,
    columns,
    depth,
    DTYPE: gl.constexpr,
    OUT: gl.constexpr,
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
    """One CTA of a persistent grid. Needs pointers on 16 bytes; 16 bytes divide leading strides; 256 divides the
    columns of gate and up together; K > 0. Rows behind the last group are not written: skips_rest is 1."""
    base = parameters_address(BY_VALUE)
    epilogue = make_epilogue(EPILOGUE)
    tiling = make_tiling(
        DTYPE, OUT, LAYOUT, BLOCK_M, BLOCK_N, BLOCK_K, STAGES, RASTER, CONSUMERS, SPLIT, SLICES,
        epilogue.SUMS_PER_OUTPUT,
    )  # fmt: skip
    offs = word(base + grouped_descriptors.offs)
    GATHERS: gl.constexpr = SOURCE == "indexed"
    LOADING_WARP: gl.constexpr = gl.num_warps() * CONSUMERS if GATHERS else None
    ARRIVALS: gl.constexpr = 1 + 32 * GATHER_WARPS if GATHERS else SCALED_ARRIVALS
    schedule = RaggedMSchedule(base, groups, rows, columns, depth, offs, tiling, GATHERS, LOADING_WARP, ARRIVALS)
    run_gated(make_work(schedule, tiling, make_gated_scales(tiling), epilogue))
