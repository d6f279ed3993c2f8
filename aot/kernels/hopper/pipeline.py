"""The warp-specialized pipeline of `hopper` and `hopper_ragged`: one producer warp, one or two consumer groups.

The producer fills a ring of k-tiles; a full and an empty barrier for each stage pass a slot from one side to the other
(CUTLASS's PipelineTmaAsync). Consumers multiply with wgmma, one k-tile always in flight. How two consumer groups share
the tiles is the schedule of hopper/tiling.py.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from .gather import GATHER_REGISTERS, GATHER_WARPS, GATHERING_CONSUMER_REGISTERS, gather
from .load import produce
from .store import round_pairs, store_pairs, store_tile
from .work import full_slot, release, tile_coord

CONSUMER_REGISTERS = gl.constexpr(232)  # of each of two groups, beside a producer of one warp


@gluon.jit
def operands(work, slot, ME: gl.constexpr):
    """The two operands of wgmma in a slot: A (consumer ME's rows of it) and B, or with SWAP_AB B^T and A^T."""
    tiling = work.tiling
    a, b = work.a_ring.index(slot), work.b_ring.index(slot)
    if tiling.LAYOUT[0] == "t":
        a = a.permute((1, 0))
    if tiling.COOPERATIVE:
        a = a.slice(ME * tiling.CONSUMER_M, tiling.CONSUMER_M, 0)
    if tiling.LAYOUT[1] == "t":
        b = b.permute((1, 0))
    if tiling.SWAP_AB:
        return b.permute((1, 0)), a.permute((1, 0))
    else:
        return a, b


@gluon.jit
def wait_order(work, count, ME: gl.constexpr):
    """Pingpong: waits until the tensor cores are consumer ME's for tile `count` of the CTA."""
    mbarrier.wait(work.order.index(ME), (count // 2 & 1) ^ (1 - ME))


@gluon.jit
def pass_order(work, ME: gl.constexpr):
    """Pingpong: the tensor cores to the other consumer group. Its products queue behind those in flight."""
    if work.tiling.PINGPONG:
        mbarrier.arrive(work.order.index(1 - ME))


@gluon.jit
def zero_columns(work, COLUMNS: gl.constexpr):
    """Accumulators of so many columns of a tile, in the layout of wgmma's result. A transposed tile has all."""
    tiling = work.tiling
    BITS: gl.constexpr = tiling.DTYPE.primitive_bitwidth
    SHAPE: gl.constexpr = [tiling.BLOCK_N, tiling.CONSUMER_M] if tiling.SWAP_AB else [tiling.CONSUMER_M, COLUMNS]
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[gl.num_warps(), 1], instr_shape=[16, SHAPE[1], 256 // BITS]
    )
    return gl.zeros(SHAPE, gl.float32, layout)


@gluon.jit
def zero_sums(work):
    """Accumulators of a tile, or of a consumer group's part of one."""
    return zero_columns(work, work.tiling.BLOCK_N)


@gluon.jit
def start_k_tile(work, k_tile, sums, ME: gl.constexpr):
    """Adds the products of a k-tile once its slot is full. They are in flight until they are waited for."""
    slot = full_slot(work, k_tile)
    if work.schedule.GATHERS:
        fence_async_shared()  # cp.async wrote A, and wgmma reads through another proxy
    a, b = operands(work, slot, ME)
    return warpgroup_mma(a, b, sums, is_async=True)


@gluon.jit
def release_before(work, k_tile, pred):
    """Releases the slot of the k-tile before `k_tile`."""
    STAGES: gl.constexpr = work.tiling.STAGES
    release(work, (k_tile + STAGES - 1) % STAGES, pred)


@gluon.jit
def multiply(work, k_tile, k_tiles, ME: gl.constexpr):
    """Sums `k_tiles` k-tiles in the tensor cores, one always in flight."""
    sums = zero_sums(work)
    for i in range(0, k_tiles):
        sums = start_k_tile(work, k_tile, sums, ME)
        sums = warpgroup_mma_wait(1, (sums,))
        release_before(work, k_tile, i > 0)
        k_tile += 1
    pass_order(work, ME)
    sums = warpgroup_mma_wait(0, (sums,))
    release_before(work, k_tile, k_tiles > 0)
    return sums


@gluon.jit
def multiply_promoted(work, k_tile, k_tiles, ME: gl.constexpr):
    """As multiply, but the tensor cores sum one k-tile only: see hopper/scaling.py."""
    sums = zero_sums(work)
    for _ in range(0, k_tiles):
        part = start_k_tile(work, k_tile, zero_sums(work), ME)
        part = warpgroup_mma_wait(0, (part,))
        release(work, k_tile % work.tiling.STAGES, True)
        sums += part
        k_tile += 1
    pass_order(work, ME)
    return sums


@gluon.jit
def skip_k_tiles(work, k_tile, k_tiles):
    """Cooperative: releases the k-tiles of a tile that the other consumer group multiplies alone."""
    for _ in range(0, k_tiles):
        release(work, full_slot(work, k_tile), True)
        k_tile += 1


@gluon.jit
def apply_epilogue(work, group, sums, n):
    """Scales, then the epilogue: the values of C before rounding."""
    return work.epilogue.apply(work, group, work.scaling.apply(work, group, sums), n)


@gluon.jit
def store_coord(work, group, m, n):
    """Where the tile at (m, n) of the sums goes in C."""
    return work.schedule.store_coord(group, m, n // work.epilogue.SUMS_PER_OUTPUT)


@gluon.jit
def consume_tile(work, group, k_tile, k_tiles, m, n, ME: gl.constexpr):
    if work.scaling.PROMOTES:
        sums = multiply_promoted(work, k_tile, k_tiles, ME)
    else:
        sums = multiply(work, k_tile, k_tiles, ME)
    store_tile(work, store_coord(work, group, m, n), apply_epilogue(work, group, sums, n), ME)


@gluon.jit
def consume(work, ME: gl.constexpr):
    """Consumer group ME: the tiles, or parts of tiles, that its schedule gives it."""
    tiling = work.tiling
    tile = gl.program_id(0)
    k_tile = 0
    count = 0
    group = work.schedule.first(tile)
    while tile < group.end:
        k_tiles = tiling.k_tiles(group.K)
        while tile < group.end:
            m, n = tile_coord(work, group, tile)
            if tiling.COOPERATIVE:
                m += ME * tiling.CONSUMER_M
                if m < work.schedule.M(group):
                    consume_tile(work, group, k_tile, k_tiles, m, n, ME)
                else:
                    skip_k_tiles(work, k_tile, k_tiles)
            elif tiling.PINGPONG:
                if count % 2 == ME:
                    wait_order(work, count, ME)
                    consume_tile(work, group, k_tile, k_tiles, m, n, ME)
            else:
                consume_tile(work, group, k_tile, k_tiles, m, n, ME)
            k_tile += k_tiles
            count += 1
            tile += gl.num_programs(0)
        group = work.schedule.next(group, tile)
    tma.store_wait(0)


@gluon.jit
def consume_deferred(work):
    """A consumer group that is alone, with a deferred epilogue.

    A tile is rounded when its last products end. It is stored a subtile at a time while the tensor cores are at the
    first k-tiles of the next tile, so that they wait for little else.

    No branch may lie between the start of a k-tile's products and the wait behind it, or the compiler waits at once.
    """
    tile = gl.program_id(0)
    k_tile = 0
    group = work.schedule.first(tile)
    m, n = tile_coord(work, group, tile)
    coord = work.schedule.no_store(group)
    pairs = round_pairs(work, work.epilogue.zeros(work, zero_sums(work)))
    while tile < group.end:
        k_tiles = work.tiling.k_tiles(group.K)
        sums = zero_sums(work)
        for i in gl.static_range(work.tiling.EPILOGUE_SUBTILES):
            sums = start_k_tile(work, k_tile, sums, 0)
            store_pairs(work, coord, pairs, i)
            sums = warpgroup_mma_wait(1, (sums,))
            release_before(work, k_tile, i > 0)
            k_tile += 1
        for _ in range(work.tiling.EPILOGUE_SUBTILES, k_tiles):
            sums = start_k_tile(work, k_tile, sums, 0)
            sums = warpgroup_mma_wait(1, (sums,))
            release_before(work, k_tile, True)
            k_tile += 1
        done, done_n, coord = group, n, store_coord(work, group, m, n)
        tile += gl.num_programs(0)
        if tile >= group.end:
            group = work.schedule.next(group, tile)
        m, n = tile_coord(work, group, tile)
        sums = warpgroup_mma_wait(0, (sums,))
        release_before(work, k_tile, True)
        pairs = round_pairs(work, apply_epilogue(work, done, sums, done_n))
    for i in gl.static_range(work.tiling.EPILOGUE_SUBTILES):
        store_pairs(work, coord, pairs, i)
    tma.store_wait(0)


@gluon.jit
def consume_as_tiled(work, ME: gl.constexpr):
    if work.tiling.DEFERRED:
        consume_deferred(work)
    else:
        consume(work, ME)


@gluon.jit
def _consume(work, consumer: gl.constexpr, ME: gl.constexpr):
    consumer(work, ME)


@gluon.jit
def _produce(work, producer: gl.constexpr):
    producer(work)


@gluon.jit
def specialize(
    work, consumer: gl.constexpr, producer: gl.constexpr,
    PRODUCER_WARPS: gl.constexpr, CONSUMER_REGISTERS: gl.constexpr, PRODUCER_REGISTERS: gl.constexpr,
):  # fmt: skip
    """Gives the CTA's warps their parts, and each part its registers a thread: with too few it spills. A consumer group
    that is alone takes what the producer leaves."""
    if work.tiling.CONSUMERS == 1:
        gl.warp_specialize(
            [(_consume, (work, consumer, 0)), (_produce, (work, producer))], [PRODUCER_WARPS], [PRODUCER_REGISTERS]
        )
    else:
        gl.warp_specialize(
            [(_consume, (work, consumer, 0)), (_consume, (work, consumer, 1)), (_produce, (work, producer))],
            [4, PRODUCER_WARPS],
            [CONSUMER_REGISTERS, PRODUCER_REGISTERS],
        )


@gluon.jit
def run(work):
    """All parts of a CTA: consumers multiply, a producer loads A and B or gathers A."""
    if work.schedule.GATHERS:
        specialize(work, consume_as_tiled, gather, GATHER_WARPS, GATHERING_CONSUMER_REGISTERS, GATHER_REGISTERS)
    else:
        specialize(work, consume_as_tiled, produce, 1, CONSUMER_REGISTERS, work.schedule.PRODUCER_REGISTERS)
