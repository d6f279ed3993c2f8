"""`hopper`: C[g] = A[g] @ B[g] for a problem list, warp-specialized, in Gluon for sm_90.

The last of three kernels for lists, after `basic` and `tma`. Its techniques, with figures from
benchmarks/notes/lists.md (one H200):

- TMA descriptors made by the host and kept in the records: 291 → 228 µs and 78 → 42 µs on two ragged lists.
- Warp specialization, as in CUTLASS's KernelTmaWarpSpecialized: a producer warp keeps a ring of k-tiles full, consumer
  groups keep the tensor cores busy (pipeline.py).
- Epilogue subtiles: C leaves in parts through a smaller buffer, which makes room for a fourth stage of 128×256×64:
  907 → 845 µs.
- Pingpong: two consumer groups take tiles in turns, and one stores while the other multiplies: 243 µs against 246 to
  261 µs on 64 ragged problems.
- Deferred epilogue: a consumer group that is alone stores a tile behind the first k-tiles of the next one: 1.1 to 3.7 %
  on large ragged layers.
- Swapped operands: tiles of 16 and 32 rows are summed as their transposes, since wgmma takes 64 rows at least: up to
  11 % on lists of 16 rows.

This file puts the kernel together: schedules/list.py, scaling.py, epilogues/.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ..epilogues import make_epilogue
from ..records import list_descriptors
from .pipeline import run
from .record import parameters_address
from .scaling import make_scaling
from .schedules.list import ListSchedule
from .tiling import make_tiling
from .work import make_work


@gluon.jit
def hopper(
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

    The list is at `problems`, or if that is 0 in the first parameter, `list_words`. RASTER, CONSUMERS, SPLIT and SLICES
    are names of the config: `make_tiling` gives them the field's.
    """
    base = gl.where(problems == 0, parameters_address(BY_VALUE), problems)
    epilogue = make_epilogue(EPILOGUE)
    tiling = make_tiling(
        DTYPE, OUT, LAYOUT, BLOCK_M, BLOCK_N, BLOCK_K, STAGES, RASTER, CONSUMERS, SPLIT, SLICES,
        epilogue.SUMS_PER_OUTPUT,
    )  # fmt: skip
    schedule = ListSchedule(base, groups, problems != 0, tiling, list_descriptors.size)
    run(make_work(schedule, tiling, make_scaling(SCALING, DTYPE), epilogue))
