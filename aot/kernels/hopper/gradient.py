"""The consumer groups of a kernel that goes back through an activation: two, which take whole tiles in turns.

The epilogue reads and writes five times the bytes of a tile of the output. While one group is at it, the other
multiplies. A group asks for the first parts of what its epilogue reads before it multiplies.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma_wait

from ..epilogues.gated_gradient import PART, GatedGradient
from .gather import GATHER_REGISTERS, GATHER_WARPS, GATHERING_CONSUMER_REGISTERS, gather
from .pipeline import pass_order, release_before, start_k_tile, store_coord, wait_order, zero_sums
from .schedules.ragged_m import StoreCoord
from .work import Work, tile_coord


@gluon.jit
def make_gradient_work(schedule, tiling, scaling, BY_VALUE: gl.constexpr):
    """As make_work of hopper/work.py, with the epilogue's buffers and barriers."""
    B_SHAPE: gl.constexpr = (
        [tiling.BLOCK_K, tiling.BLOCK_N] if tiling.LAYOUT[1] == "n" else [tiling.BLOCK_N, tiling.BLOCK_K]
    )
    SWIZZLED: gl.constexpr = gl.NVMMASharedLayout(128, tiling.DTYPE.primitive_bitwidth, 2)
    full = mbarrier.allocate_mbarrier(batch=tiling.STAGES)
    order = mbarrier.allocate_mbarrier(batch=2)
    z_full = mbarrier.allocate_mbarrier(batch=4)
    for i in gl.static_range(2):
        mbarrier.init(order.index(i), count=1)
    for i in gl.static_range(4):
        mbarrier.init(z_full.index(i), count=1)
    work = Work(
        schedule,
        gl.allocate_shared_memory(tiling.DTYPE, [tiling.STAGES, tiling.BLOCK_M, tiling.BLOCK_K], SWIZZLED),
        gl.allocate_shared_memory(tiling.DTYPE, [tiling.STAGES, B_SHAPE[0], B_SHAPE[1]], SWIZZLED),
        gl.allocate_shared_memory(tiling.OUT, [12, PART, PART], SWIZZLED),  # 2 groups, 2 parts each, 3 of a part
        full,
        mbarrier.allocate_mbarrier(batch=tiling.STAGES),
        gl.allocate_shared_memory(gl.uint32, [tiling.BLOCK_M], gl.SwizzledSharedLayout(1, 1, 1, [0])),
        order,
        tiling,
        scaling,
        GatedGradient(z_full, BY_VALUE),
    )
    for i in gl.static_range(tiling.STAGES):
        mbarrier.init(work.full.index(i), count=schedule.ARRIVALS)
        mbarrier.init(work.empty.index(i), count=gl.num_warps())
    return work


@gluon.jit
def opaque(value):
    """The value, of which the compiler does not see what else it could be made of."""
    return gl.inline_asm("mov.b32 $0, $1;", "=r,r", [value], result_types=gl.int32)


@gluon.jit
def program_now():
    """The number of the CTA, read where it stands: each group of warps would keep that of all."""
    return gl.inline_asm("mov.u32 $0, %ctaid.x;", "=r", [], result_types=gl.int32)


@gluon.jit
def kept_coord(coord):
    """The coordinates alone: with what they were made of in registers too, others would spill."""
    return StoreCoord(coord.record, opaque(coord.m), opaque(coord.stop), opaque(coord.n))


@gluon.jit
def multiply_some(work, k_tile, k_tiles, ME: gl.constexpr):
    """As `multiply` of hopper/pipeline.py, of at least one k-tile."""
    sums = zero_sums(work)
    for i in range(0, k_tiles):
        sums = start_k_tile(work, k_tile, sums, ME)
        sums = warpgroup_mma_wait(1, (sums,))
        release_before(work, k_tile, i > 0)
        k_tile += 1
    pass_order(work, ME)
    sums = warpgroup_mma_wait(0, (sums,))
    release_before(work, k_tile, True)
    return sums


@gluon.jit
def consume_gradient(work, ME: gl.constexpr):
    """Consumer group ME: every second tile of the CTA."""
    # Its tiles alone, as all groups have the same K: with those of both it would carry more, and spill.
    k_tiles = work.tiling.k_tiles(work.schedule.K)
    tile = program_now() + ME * gl.num_programs(0)
    count = ME
    group = work.schedule.first(tile)
    while tile < group.end:
        m, n = tile_coord(work, group, tile)
        coord = kept_coord(store_coord(work, group, m, n))
        work.epilogue.prefetch(work, coord, ME)
        wait_order(work, count, ME)
        sums = multiply_some(work, count * k_tiles, k_tiles, ME)
        work.epilogue.store(work, coord, sums, ME)
        count += 2
        tile += 2 * gl.num_programs(0)
        group = work.schedule.first(tile)
    tma.store_wait(0)


@gluon.jit
def consume_first(work):
    consume_gradient(work, 0)


@gluon.jit
def consume_second(work):
    consume_gradient(work, 1)


@gluon.jit
def run_gradient(work):
    """Gives the CTA's warps their parts, as `run` of hopper/pipeline.py does."""
    gl.static_assert(work.tiling.PINGPONG and work.schedule.GATHERS, "two groups, and rows by an index")
    gl.warp_specialize(
        [(consume_first, (work,)), (consume_second, (work,)), (gather, (work,))],
        [4, GATHER_WARPS],
        [GATHERING_CONSUMER_REGISTERS, GATHER_REGISTERS],
    )
