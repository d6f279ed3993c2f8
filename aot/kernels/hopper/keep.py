"""The consumer group of a kernel that keeps the pre-activation.

A tile's sums are stored when its last products end, and so is what the activation makes of them. The tensor cores wait:
with the outputs in registers until the next tile's first k-tiles, as hopper/pipeline.py has them of other kernels, a
kernel that gathers spills.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma

from .gather import GATHER_REGISTERS, GATHER_WARPS, gather
from .load import produce
from .pipeline import multiply, store_coord
from .work import tile_coord


@gluon.jit
def consume_kept(work):
    # From the start and not from where the last group was found: its scan window would make others spill.
    SCANS_ANEW: gl.constexpr = work.schedule.GATHERS and work.tiling.OUT == gl.float16
    tile = gl.program_id(0)
    k_tile = 0
    group = work.schedule.first(tile)
    while tile < group.end:
        k_tiles = work.tiling.k_tiles(group.K)
        while tile < group.end:
            sums = multiply(work, k_tile, k_tiles, 0)
            m, n = tile_coord(work, group, tile)  # not before: in registers meanwhile it would make others spill
            work.epilogue.store(work, group, store_coord(work, group, m, n), sums)
            k_tile += k_tiles
            tile += gl.num_programs(0)
        if SCANS_ANEW:
            group = work.schedule.first(tile)
        else:
            group = work.schedule.next(group, tile)
    tma.store_wait(0)


@gluon.jit
def run_kept(work):
    """Gives the CTA's warps their parts, as `run` of hopper/pipeline.py does."""
    gl.static_assert(work.tiling.CONSUMERS == 1, "two consumer groups would need buffers of their own")
    if work.schedule.GATHERS:
        gl.warp_specialize([(consume_kept, (work,)), (gather, (work,))], [GATHER_WARPS], [GATHER_REGISTERS])
    else:
        gl.warp_specialize([(consume_kept, (work,)), (produce, (work,))], [1], [work.schedule.PRODUCER_REGISTERS])
