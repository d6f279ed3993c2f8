"""What the warps of a CTA share: the policies, the shared-memory ring of k-tiles, C's buffers and the barriers."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from .tiling import Tiling


@gluon.aggregate
class Work:
    """The policies are fields of any type: the entry point chooses them, and each answers the calls of its folder."""

    schedule: object  # hopper/schedules/
    a_ring: gl.shared_memory_descriptor  # [STAGES * A_PANELS, ...], a k-tile of A each
    b_ring: gl.shared_memory_descriptor  # [STAGES * B_PANELS, ...]
    c_buffers: gl.shared_memory_descriptor  # [1, 2, or 2 for each panel of B; CONSUMER_M, columns of a subtile]
    # or, of fitted tiles, in B's ring: [2 * STAGES, 64, half of the columns]
    full: gl.shared_memory_descriptor  # a barrier for each stage: its bytes have arrived
    empty: gl.shared_memory_descriptor  # its products are done
    order: gl.shared_memory_descriptor  # pingpong: one for each consumer group, the tensor cores are its own
    tiling: Tiling
    scaling: object  # hopper/scaling.py
    epilogue: object  # epilogues/


@gluon.jit
def make_work(schedule, tiling, scaling, epilogue):
    A_ROWS: gl.constexpr = tiling.BLOCK_M // tiling.A_PANELS
    A_SHAPE: gl.constexpr = [A_ROWS, tiling.BLOCK_K] if tiling.LAYOUT[0] == "n" else [tiling.BLOCK_K, A_ROWS]
    B_COLUMNS: gl.constexpr = tiling.BLOCK_N // tiling.B_PANELS
    B_SHAPE: gl.constexpr = [tiling.BLOCK_K, B_COLUMNS] if tiling.LAYOUT[1] == "n" else [B_COLUMNS, tiling.BLOCK_K]
    SWIZZLED: gl.constexpr = gl.NVMMASharedLayout(128, tiling.DTYPE.primitive_bitwidth, 2)
    SWIZZLED_OUT: gl.constexpr = gl.NVMMASharedLayout(128, tiling.OUT.primitive_bitwidth, 2)
    C_BUFFERS: gl.constexpr = 2 if tiling.DEFERRED else tiling.CONSUMERS * tiling.B_PANELS
    RELEASING_WARPS: gl.constexpr = gl.num_warps() * (tiling.CONSUMERS if tiling.COOPERATIVE else 1) * tiling.CLUSTER
    full = mbarrier.allocate_mbarrier(batch=tiling.STAGES)
    # Shared memory that held a barrier must not be used for anything else (PTX, mbarrier.inval): a context switch may
    # bring the barrier back. The compiler gives away what is no longer used, so no barrier is made that nobody uses.
    if tiling.PINGPONG:
        order = mbarrier.allocate_mbarrier(batch=2)
        for i in gl.static_range(2):
            mbarrier.init(order.index(i), count=1)
    else:
        order = full
    a_ring = gl.allocate_shared_memory(
        tiling.DTYPE, [tiling.STAGES * tiling.A_PANELS, A_SHAPE[0], A_SHAPE[1]], SWIZZLED
    )
    b_ring = gl.allocate_shared_memory(
        tiling.DTYPE, [tiling.STAGES * tiling.B_PANELS, B_SHAPE[0], B_SHAPE[1]], SWIZZLED
    )
    if tiling.EPILOGUE_SUBTILES > 0:
        C_COLUMNS: gl.constexpr = tiling.BLOCK_N // epilogue.SUMS_PER_OUTPUT // tiling.EPILOGUE_SUBTILES
        c_buffers = gl.allocate_shared_memory(tiling.OUT, [C_BUFFERS, tiling.CONSUMER_M, C_COLUMNS], SWIZZLED_OUT)
    else:
        PARTS: gl.constexpr = 2 * tiling.STAGES
        c_buffers = b_ring.reinterpret(tiling.OUT, [PARTS, 64, tiling.BLOCK_N // 2], SWIZZLED_OUT)
    work = Work(
        schedule,
        a_ring,
        b_ring,
        c_buffers,
        full,
        mbarrier.allocate_mbarrier(batch=tiling.STAGES),
        order,
        tiling,
        scaling,
        epilogue,
    )
    for i in gl.static_range(tiling.STAGES):
        mbarrier.init(work.full.index(i), count=schedule.ARRIVALS)
        mbarrier.init(work.empty.index(i), count=RELEASING_WARPS)
    return work


@gluon.jit
def tile_coord(work, group, tile):
    """Row and column of a tile in its group."""
    if work.tiling.CLUSTER == 2:
        m, n, _ = pair_coord(work, group, tile)
        return m, n
    else:
        return work.tiling.coord(work.schedule.M(group), group.N, group.first, tile)


@gluon.jit
def pair_coord(work, group, tile):
    """The same of a cluster's tile, and whether its pair shares B."""
    return work.tiling.pair_coord(work.schedule.M(group), group.N, group.first, tile)


@gluon.jit
def empty_slot(work, k_tile):
    """Waits for the slot that a k-tile goes to: the products of what it held are done. `k_tile` counts all of the
    CTA."""
    STAGES: gl.constexpr = work.tiling.STAGES
    slot = k_tile % STAGES
    mbarrier.wait(work.empty.index(slot), (k_tile // STAGES & 1) ^ 1)
    return slot


@gluon.jit
def full_slot(work, k_tile):
    """Waits for the slot that has a k-tile."""
    STAGES: gl.constexpr = work.tiling.STAGES
    slot = k_tile % STAGES
    mbarrier.wait(work.full.index(slot), k_tile // STAGES & 1)
    return slot


@gluon.jit
def release(work, slot, pred):
    """This warp has done with a slot of the ring. One lane arrives on the slot's empty barrier."""
    if work.tiling.CLUSTER == 2:
        arrive_in_cluster(work.empty.index(slot), pred, 1)
    else:
        gl.inline_asm(
            "{ .reg .pred one; .reg .b32 lane; mov.u32 lane, %laneid; setp.lt.u32 one, lane, $1; "
            "@one mbarrier.arrive.shared::cta.b64 _, [$0]; }",
            "r,r",
            [work.empty.index(slot), gl.where(pred, 1, 0)],
        )


@gluon.jit
def arrive_in_cluster(barrier, pred, COUNT: gl.constexpr):
    """On the barrier and on the one at its place in the other CTA, COUNT times: lane 0 in the first CTA, lane 1 in the
    second."""
    gl.inline_asm(
        "{ .reg .pred two; .reg .b32 lane, there; mov.u32 lane, %laneid; setp.lt.u32 two, lane, $1; "
        f"mapa.shared::cluster.u32 there, $0, lane; @two mbarrier.arrive.shared::cluster.b64 _, [there], {COUNT}; }}",
        "r,r",
        [barrier, gl.where(pred, 2, 0)],
    )


@gluon.jit
def shared_address(buffer):
    return gl.inline_asm("mov.b32 $0, $1;", "=r,r", [buffer], result_types=gl.int32)


@gluon.jit
def arrive_when_copied(barrier):
    """Each thread arrives on the barrier once its copies so far are done."""
    gl.inline_asm("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [$0];", "r", [barrier])


@gluon.jit
def arrive_as_warp(barrier):
    """The lane that the warp elects arrives on the barrier."""
    gl.inline_asm(
        "{ .reg .pred one; elect.sync _|one, 0xffffffff; @one mbarrier.arrive.shared::cta.b64 _, [$0]; }",
        "r",
        [barrier],
    )
