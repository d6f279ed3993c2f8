"""`hopper_ragged`: C = A @ B[g] for the rows of A that belong to group g, warp-specialized, in Gluon for sm_90.

The pipeline of `hopper` with ragged M, so that a captured launch takes any split. What it adds (schedules/ragged_m.py),
with figures from benchmarks/notes/ragged_rows.md (one H200):

- Ragged TMA coordinates, as in triton.tools.ragged_tma: stores end at a group's last row, and no tile has a slow path.
- Zeros loaded past a group's end: they take less energy to multiply, 1.7 to 3.8 % on layers at the power limit.
- Groups found by prefix scans over `offs`, 128 at a time.
- Weights that are read once leave L2 first: 0.7 to 1 % in decoding.

This file puts the kernel together. The only record is GROUPED_DESCRIPTORS of aot/spec/records.py, which
csrc/forms/grouped_record.cpp writes. B's descriptor is that of a stack.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ..epilogues import make_epilogue
from ..records import grouped_descriptors
from .gather import GATHER_WARPS
from .mixed import with_dtype_of_b
from .pipeline import run
from .record import parameters_address, word
from .scaling import make_scaling
from .schedules.ragged_m import RaggedMSchedule
from .tiling import make_tiling
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
    base = parameters_address(BY_VALUE)
    epilogue = make_epilogue(EPILOGUE)
    tiling = make_tiling(
        DTYPE, OUT, LAYOUT, BLOCK_M, BLOCK_N, BLOCK_K, STAGES, RASTER, CONSUMERS, SPLIT, SLICES,
        epilogue.SUMS_PER_OUTPUT,
    )  # fmt: skip
    offs = word(base + grouped_descriptors.offs)
    GATHERS: gl.constexpr = SOURCE == "indexed"
    ARRIVALS: gl.constexpr = 1 + 32 * GATHER_WARPS if GATHERS else 1
    schedule = RaggedMSchedule(base, groups, rows, columns, depth, offs, tiling, GATHERS, ARRIVALS)
    run(with_dtype_of_b(make_work(schedule, tiling, make_scaling(SCALING, DTYPE), epilogue)))
