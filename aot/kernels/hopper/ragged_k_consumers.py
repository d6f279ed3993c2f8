"""The consumers of a ragged K, whose tiles may have few k-tiles, and whose sums may be added to C.

Of 16 bits epilogues are deferred, for one consumer group and for each of two that share a tile (`consume_overlapped`).
Two groups then meet at no barrier but those of the ring, so that one multiplies while the other rounds its sums:
between two tiles the tensor cores wait less. `consume_deferred` of hopper/pipeline.py is for a group that is alone.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma, warpgroup_mma_wait

from .addends import with_addend
from .gather import GATHER_WARPS
from .gather_k import GATHER_K_REGISTERS, gather_k
from .load import produce
from .pipeline import (
    CONSUMER_REGISTERS,
    apply_epilogue,
    consume,
    multiply,
    release_before,
    skip_k_tiles,
    specialize,
    start_k_tile,
    store_coord,
    zero_sums,
)
from .store import fill, pairs_of_subtile, round_pairs, store_buffer, store_subtile, subtile
from .tiling import Tiling
from .work import tile_coord


@gluon.jit
def make_ragged_k_tiling(
    DTYPE: gl.constexpr, OUT: gl.constexpr, LAYOUT: gl.constexpr,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr,
    RASTER: gl.constexpr, CONSUMERS: gl.constexpr, SPLIT: gl.constexpr, SLICES: gl.constexpr,
):  # fmt: skip
    """As make_tiling. Quarters of 16 bits are deferred but in a pingpong schedule: there, the other group multiplies
    meanwhile. Sums of float32 to be deferred would take as many registers as those of the next tile."""
    PINGPONG: gl.constexpr = CONSUMERS == 2 and SPLIT == 1
    COOPERATIVE: gl.constexpr = SPLIT == 2
    CONSUMER_M: gl.constexpr = BLOCK_M // SPLIT
    DEFERRED: gl.constexpr = SLICES == 4 and not PINGPONG and OUT.primitive_bitwidth == 16
    return Tiling(
        DTYPE, OUT, LAYOUT, BLOCK_M, BLOCK_N, BLOCK_K, STAGES,
        RASTER, CONSUMERS, PINGPONG, COOPERATIVE, CONSUMER_M, SLICES, DEFERRED, BLOCK_M < 64, 1, 1, 1,
    )  # fmt: skip


@gluon.jit
def store_part(
    work, coord, values,
    OFFSET: gl.constexpr, ME: gl.constexpr, BUFFER: gl.constexpr, IN_FLIGHT: gl.constexpr,
):  # fmt: skip
    """As store_subtile of hopper/store.py. Where the producer gathers, the thread that stores is told by a number of
    the compiler's: with %tid.x read in PTX instead, ptxas of CUDA 12.9 spills up to 104 bytes, in all warps.
    """
    if not work.schedule.GATHERS:
        store_subtile(work, coord, values, OFFSET, ME, BUFFER, IN_FLIGHT)
    else:
        layout: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
        thread = gl.arange(0, 32 * gl.num_warps(), layout)
        buffer = work.c_buffers.index(BUFFER)
        fill(buffer, values, IN_FLIGHT)
        store_buffer(work, coord, buffer, OFFSET, thread)
        gl.inline_asm(
            "{ .reg .pred leader; setp.eq.u32 leader, $0, 0; @leader cp.async.bulk.commit_group; }", "r", [thread]
        )


@gluon.jit
def store_quarter(work, coord, pairs, INDEX: gl.constexpr, ME: gl.constexpr):
    """A quarter of a tile from `round_pairs`, through consumer group ME's buffer, or two in turns where it is alone."""
    COLUMNS: gl.constexpr = work.c_buffers.shape[2]
    BUFFER: gl.constexpr = ME if work.tiling.COOPERATIVE else INDEX % 2
    IN_FLIGHT: gl.constexpr = 0 if work.tiling.COOPERATIVE else 1
    store_part(work, coord, pairs_of_subtile(work, pairs, INDEX, 4), INDEX * COLUMNS, ME, BUFFER, IN_FLIGHT)


@gluon.jit
def consume_overlapped(work, ME: gl.constexpr):
    """Consumer group ME: all tiles, or its half of the rows of each.

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
        for i in gl.static_range(4):
            sums = start_k_tile(work, k_tile, sums, ME)
            store_quarter(work, coord, pairs, i, ME)
            sums = warpgroup_mma_wait(1, (sums,))
            release_before(work, k_tile, i > 0)
            k_tile += 1
        for _ in range(4, k_tiles):
            sums = start_k_tile(work, k_tile, sums, ME)
            sums = warpgroup_mma_wait(1, (sums,))
            release_before(work, k_tile, True)
            k_tile += 1
        done, done_n, coord = group, n, store_coord(work, group, m + ME * work.tiling.CONSUMER_M, n)
        tile += gl.num_programs(0)
        if tile >= group.end:
            group = work.schedule.next(group, tile)
        m, n = tile_coord(work, group, tile)
        sums = warpgroup_mma_wait(0, (sums,))
        release_before(work, k_tile, True)
        pairs = round_pairs(work, apply_epilogue(work, done, sums, done_n))
    for i in gl.static_range(4):
        store_quarter(work, coord, pairs, i, ME)
    tma.store_wait(0)


@gluon.jit
def consume_gathered(work, ME: gl.constexpr):
    """As `consume` of hopper/pipeline.py for two groups that share a tile, but that tiles are stored by store_part."""
    tiling = work.tiling
    COLUMNS: gl.constexpr = work.c_buffers.shape[2]
    gl.static_assert(tiling.EPILOGUE_SUBTILES > 1 and not tiling.SWAP_AB, "tiles are written out in halves or quarters")
    gl.static_assert(tiling.COOPERATIVE, "pingpong would have to wait for its turn")
    tile = gl.program_id(0)
    k_tile = 0
    group = work.schedule.first(tile)
    while tile < group.end:
        k_tiles = tiling.k_tiles(group.K)
        while tile < group.end:
            m, n = tile_coord(work, group, tile)
            sums = multiply(work, k_tile, k_tiles, ME)
            coord = store_coord(work, group, m + ME * tiling.CONSUMER_M, n)
            values = apply_epilogue(work, group, sums, n)
            for i in gl.static_range(tiling.EPILOGUE_SUBTILES):
                part = subtile(values, i, tiling.EPILOGUE_SUBTILES)
                store_part(work, coord, part, i * COLUMNS, ME, ME, 0)
            k_tile += k_tiles
            tile += gl.num_programs(0)
        group = work.schedule.next(group, tile)
    tma.store_wait(0)


@gluon.jit
def consume_with_addends(work, ME: gl.constexpr):
    """As `consume` of hopper/pipeline.py for two groups that share a tile, of float32 that may be added to C."""
    tiling = work.tiling
    COLUMNS: gl.constexpr = work.c_buffers.shape[2]
    tile = gl.program_id(0)
    k_tile = 0
    group = work.schedule.first(tile)
    while tile < group.end:
        k_tiles = tiling.k_tiles(group.K)
        loaded = work.schedule.loads_c(group)
        while tile < group.end:
            m, n = tile_coord(work, group, tile)
            m += ME * tiling.CONSUMER_M
            slots = gl.where(loaded, work.schedule.ADDEND_SLOTS, 0)
            if m < work.schedule.M(group):
                sums = multiply(work, k_tile, k_tiles, ME)
                coord = store_coord(work, group, m, n)
                values = apply_epilogue(work, group, sums, n)
                for i in gl.static_range(tiling.EPILOGUE_SUBTILES):
                    part = subtile(values, i, tiling.EPILOGUE_SUBTILES)
                    if loaded:
                        part = with_addend(work, part, k_tile + k_tiles, i, ME)
                    store_subtile(work, coord, part, i * COLUMNS, ME, ME, 0)
            else:
                skip_k_tiles(work, k_tile, k_tiles + slots)
            k_tile += k_tiles + slots
            tile += gl.num_programs(0)
        group = work.schedule.next(group, tile)
    tma.store_wait(0)


@gluon.jit
def consume_as_scheduled(work, ME: gl.constexpr):
    if work.tiling.DEFERRED:
        consume_overlapped(work, ME)
    elif work.schedule.GATHERS and work.tiling.CONSUMERS == 2:
        consume_gathered(work, ME)
    elif work.schedule.ADDEND_SLOTS > 0:
        consume_with_addends(work, ME)
    else:
        consume(work, ME)


@gluon.jit
def run_ragged_k(work):
    """As `run` of hopper/pipeline.py."""
    if work.schedule.GATHERS:
        specialize(work, consume_as_scheduled, gather_k, GATHER_WARPS, CONSUMER_REGISTERS, GATHER_K_REGISTERS)
    else:
        specialize(work, consume_as_scheduled, produce, 1, CONSUMER_REGISTERS, work.schedule.PRODUCER_REGISTERS)
