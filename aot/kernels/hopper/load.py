"""The producer warp: TMA loads of A and B into the ring of k-tiles, tile after tile.

The descriptors are made by the host, so a CTA moves to another group at no cost, and no descriptor is written on the
device. Rows and columns past a matrix are loaded as zeros.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from .work import empty_slot, tile_coord


@gluon.jit
def load_halves(work, group, n, k, barrier, b, BOX: gl.constexpr):
    """The columns of gate from `n` on to the left half of B's k-tile, those of up to the right half."""
    tiling = work.tiling
    COLUMNS: gl.constexpr = tiling.BLOCK_N // 2
    for half in gl.static_range(2):
        if tiling.LAYOUT[1] == "n":
            for i in gl.static_range(COLUMNS // BOX):
                offset = (half * COLUMNS // BOX + i) * tiling.BLOCK_K * 128
                work.schedule.load_half_of_b(group, half, n + i * BOX, k, barrier, b, offset)
        else:
            for i in gl.static_range(tiling.BLOCK_K // BOX):
                offset = (i * tiling.BLOCK_N + half * COLUMNS) * 128
                work.schedule.load_half_of_b(group, half, k + i * BOX, n, barrier, b, offset)


@gluon.jit
def load_k_tile(work, group, m, n, k, slot):
    """One k-tile of A and B into a slot of the ring, box by box. A box is 128 bytes wide."""
    tiling = work.tiling
    barrier = work.full.index(slot)
    a, b = work.a_ring.index(slot), work.b_ring.index(slot * tiling.B_PANELS)
    BITS: gl.constexpr = tiling.DTYPE.primitive_bitwidth
    BOX: gl.constexpr = 1024 // BITS
    mbarrier.expect(barrier, (tiling.BLOCK_M + tiling.BLOCK_N) * tiling.BLOCK_K * BITS // 8)
    if tiling.LAYOUT[0] == "n":
        for i in gl.static_range(tiling.BLOCK_K // BOX):
            work.schedule.load_a(group, k + i * BOX, m, barrier, a, i * tiling.BLOCK_M * 128)
    else:
        for i in gl.static_range(tiling.BLOCK_M // BOX):
            work.schedule.load_a(group, m + i * BOX, k, barrier, a, i * tiling.BLOCK_K * 128)
    if work.epilogue.HALVES:
        load_halves(work, group, n // 2, k, barrier, b, BOX)
    elif tiling.LAYOUT[1] == "n":
        for i in gl.static_range(tiling.BLOCK_N // BOX):
            work.schedule.load_b(group, n + i * BOX, k, barrier, b, i * tiling.BLOCK_K * 128)
    else:
        for i in gl.static_range(tiling.BLOCK_K // BOX):
            work.schedule.load_b(group, k + i * BOX, n, barrier, b, i * tiling.BLOCK_N * 128)


@gluon.jit
def load_k_tiles(work, group, m, n, first_k, k_tile, begin, end):
    """The k-tiles [begin, end) of a tile, whose K starts at `first_k`. Each waits until its slot of the ring is empty.

    `k_tile` counts all k-tiles of the CTA. It is returned as it is after these.
    """
    for i in range(begin, end):
        slot = empty_slot(work, k_tile)
        load_k_tile(work, group, m, n, first_k + i * work.tiling.BLOCK_K, slot)
        k_tile += 1
    return k_tile


@gluon.jit
def produce_in_order(work):
    tile = gl.program_id(0)
    k_tile = 0
    group = work.schedule.first(tile)
    while tile < group.end:
        k_tiles = work.tiling.k_tiles(group.K)
        first_k = work.schedule.first_k(group)
        while tile < group.end:
            m, n = tile_coord(work, group, tile)
            k_tile = load_k_tiles(work, group, m, n, first_k, k_tile, 0, k_tiles)
            k_tile = work.schedule.load_behind(work, group, m, n, k_tile)
            tile += gl.num_programs(0)
        group = work.schedule.next(group, tile)


@gluon.jit
def produce_acquiring_ahead(work):
    """Finds the next group and acquires its descriptors after the first k-tile of a group's last tile.

    TMA takes a microsecond to read descriptors anew. The consumers have k-tiles of the ring to multiply meanwhile.
    """
    tile = gl.program_id(0)
    k_tile = 0
    group = work.schedule.first(tile)
    work.schedule.acquire(group)
    while tile < group.end:
        loaded = group
        m, n = tile_coord(work, group, tile)
        k_tiles = work.tiling.k_tiles(group.K)
        first_k = work.schedule.first_k(group)
        begun = gl.minimum(k_tiles, 1)
        k_tile = load_k_tiles(work, loaded, m, n, first_k, k_tile, 0, begun)
        tile += gl.num_programs(0)
        if tile >= group.end:
            group = work.schedule.next(group, tile)
            work.schedule.acquire(group)
        k_tile = load_k_tiles(work, loaded, m, n, first_k, k_tile, begun, k_tiles)


@gluon.jit
def produce(work):
    if work.schedule.DESCRIPTORS_MAY_BE_STALE:
        produce_acquiring_ahead(work)
    else:
        produce_in_order(work)
