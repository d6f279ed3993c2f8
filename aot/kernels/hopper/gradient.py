"""The warps of a kernel that goes back through an activation, each tile at once behind its own products.

The ring of k-tiles serves the epilogue as well: behind a tile's k-tiles the producer loads the parts of the
pre-activation z, a slot each, while the last products run: gate's columns into the slot's A, up's into the first half
of its B; the second is for the weighted output. So the epilogue needs no buffers of its own, z is there when the sums
are, and the next tile's first k-tiles come while its last parts are computed.

hopper/gradient_deferred.py hides the way back behind the next tile's products, which takes more of them.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma_wait

from ..epilogues.gated_gradient import go_back, make_gated_gradient, store_boxes, store_row_sums, wait_until_read
from ..records import gradient_descriptors
from .boxes import load_4d_hinted
from .gather import GATHER_REGISTERS, GATHER_WARPS, gather_tile, gathering_lanes
from .gradient_rows import arrive, prepare_rows
from .pipeline import release_before, start_k_tile, store_coord, zero_sums
from .schedules.ragged_m import LAST_ROW
from .store import subtile
from .tiling import Tiling
from .work import Work, release, tile_coord

_EVICT_FIRST = gl.constexpr(0x12F0000000000000)  # an L2 policy, as `createpolicy` makes it: z is read once
_TILES = gl.constexpr(2)  # whose rows are known


@gluon.jit
def make_gradient_tiling(
    DTYPE: gl.constexpr, OUT: gl.constexpr, LAYOUT: gl.constexpr,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr,
    RASTER: gl.constexpr, CONSUMERS: gl.constexpr, SPLIT: gl.constexpr, SLICES: gl.constexpr,
):  # fmt: skip
    """As make_tiling. SLICES are the parts that a tile goes back in: behind its own products, or deferred by two
    consumer groups, each of which has half of the rows."""
    gl.static_assert(CONSUMERS == SPLIT and DTYPE == OUT)
    return Tiling(
        DTYPE, OUT, LAYOUT, BLOCK_M, BLOCK_N, BLOCK_K, STAGES,
        RASTER, CONSUMERS, False, CONSUMERS == 2, BLOCK_M // SPLIT, SLICES, CONSUMERS == 2, False, 1, 1,
    )  # fmt: skip


@gluon.jit
def make_ring(tiling):
    """(A's k-tiles, B's k-tiles)."""
    SWIZZLED: gl.constexpr = gl.NVMMASharedLayout(128, tiling.DTYPE.primitive_bitwidth, 2)
    B_SHAPE: gl.constexpr = (
        [tiling.BLOCK_K, tiling.BLOCK_N] if tiling.LAYOUT[1] == "n" else [tiling.BLOCK_N, tiling.BLOCK_K]
    )
    a_ring = gl.allocate_shared_memory(tiling.DTYPE, [tiling.STAGES, tiling.BLOCK_M, tiling.BLOCK_K], SWIZZLED)
    return a_ring, gl.allocate_shared_memory(tiling.DTYPE, [tiling.STAGES, B_SHAPE[0], B_SHAPE[1]], SWIZZLED)


@gluon.jit
def make_barriers(schedule, tiling):
    """(full, empty) for each stage of the ring."""
    full, empty = mbarrier.allocate_mbarrier(batch=tiling.STAGES), mbarrier.allocate_mbarrier(batch=tiling.STAGES)
    for i in gl.static_range(tiling.STAGES):
        mbarrier.init(full.index(i), count=schedule.ARRIVALS)
        mbarrier.init(empty.index(i), count=gl.num_warps() * tiling.CONSUMERS)
    return full, empty


@gluon.jit
def make_gradient_work(schedule, tiling, scaling):
    """As make_work of hopper/work.py. The output's buffers are the slots' B, in two halves of A's size each."""
    SWIZZLED: gl.constexpr = gl.NVMMASharedLayout(128, tiling.OUT.primitive_bitwidth, 2)
    PART: gl.constexpr = tiling.BLOCK_N // tiling.EPILOGUE_SUBTILES
    gl.static_assert(tiling.BLOCK_K == PART, "a part of z fills a slot's A")
    gl.static_assert(tiling.BLOCK_N == 2 * tiling.BLOCK_M, "and the other part and the output its B")
    full, empty = make_barriers(schedule, tiling)
    a_ring, b_ring = make_ring(tiling)
    c_buffers = b_ring.reinterpret(tiling.OUT, [2 * tiling.STAGES, tiling.BLOCK_M, PART], SWIZZLED)
    epilogue = make_gated_gradient(tiling.BLOCK_M, _TILES)
    return Work(schedule, a_ring, b_ring, c_buffers, full, empty, full, tiling, scaling, epilogue)


@gluon.jit
def load_part(work, coord, slot, COLUMN: gl.constexpr):
    """Starts to load a part of z into a slot: gate's columns into its A, up's into the first half of its B."""
    barrier = work.full.index(slot)
    gate, up = work.a_ring.index(slot), work.c_buffers.index(2 * slot)
    last, policy = gl.to_tensor(LAST_ROW), gl.to_tensor(_EVICT_FIRST)
    record, column = coord.record, coord.n + COLUMN
    WARP: gl.constexpr = work.tiling.BLOCK_M // 16  # the first that gathers
    mbarrier.expect(barrier, 2 * work.tiling.BLOCK_M * 128)
    load_4d_hinted(
        record + gradient_descriptors.z, column, coord.m, last, coord.stop, barrier, gate, 0, policy, WARP
    )  # fmt: skip
    load_4d_hinted(
        record + gradient_descriptors.z_up, column, coord.m, last, coord.stop, barrier, up, 0, policy, WARP
    )  # fmt: skip


@gluon.jit
def load_parts(work, group, m, n, k_tile, count):
    """All parts of z for a tile; and what its rows need, which is there when the first part is."""
    STAGES: gl.constexpr = work.tiling.STAGES
    coord = store_coord(work, group, m, n)
    for i in gl.static_range(work.tiling.EPILOGUE_SUBTILES):
        slot = k_tile % STAGES
        mbarrier.wait(work.empty.index(slot), (k_tile // STAGES & 1) ^ 1)
        load_part(work, coord, slot, i * work.tiling.BLOCK_K)
        if i == 0:
            # The consumers have done with the tile before the last: no more than STAGES slots are ahead of them.
            prepare_rows(work, group, m, n, count % _TILES)
        arrive(work.full.index(slot))
        k_tile += 1


@gluon.jit
def gather_with_parts(work):
    """As `gather` of hopper/gather.py, with parts of z behind each tile's k-tiles."""
    lanes = gathering_lanes(work)
    tile = gl.program_id(0)
    k_tile = 0
    count = 0
    group = work.schedule.first(tile)
    while tile < group.end:
        k_tiles = work.tiling.k_tiles(group.K)
        while tile < group.end:
            m, n = work.tiling.coord(work.schedule.M(group), group.N, tile - group.first)
            k_tile = gather_tile(work, group, lanes, m, n, k_tile, k_tiles)
            load_parts(work, group, m, n, k_tile, count)
            k_tile += work.tiling.EPILOGUE_SUBTILES
            count += 1
            tile += gl.num_programs(0)
        group = work.schedule.next(group, tile)


@gluon.jit
def multiply_next(work, k_tile, k_tiles):
    """As `multiply` of hopper/pipeline.py, of at least one k-tile. The last slot of the tile before is released once
    its boxes are read: the first products are under way then."""
    sums = zero_sums(work)
    for _ in range(0, k_tiles):
        sums = start_k_tile(work, k_tile, sums, 0)
        sums = warpgroup_mma_wait(1, (sums,))
        wait_until_read(0)
        release_before(work, k_tile, k_tile > 0)
        k_tile += 1
    sums = warpgroup_mma_wait(0, (sums,))
    release_before(work, k_tile, True)
    return sums


@gluon.jit
def go_back_a_part(work, coord, dh, weights, k_tile, COLUMN: gl.constexpr):
    """All that becomes of a part of dh, with the slot of `k_tile`. Returns the row sums of the activation times dh."""
    STAGES: gl.constexpr = work.tiling.STAGES
    slot = k_tile % STAGES
    mbarrier.wait(work.full.index(slot), k_tile // STAGES & 1)
    of_gate, of_up, of_h = work.a_ring.index(slot), work.c_buffers.index(2 * slot), work.c_buffers.index(2 * slot + 1)
    gate, up = of_gate.load(dh.type.layout).to(gl.float32), of_up.load(dh.type.layout).to(gl.float32)
    dgate, dup, h, products = go_back(dh, gate, up, weights.expand_dims(1))
    sums = gl.sum(products, 1)
    of_gate.store(dgate.to(of_gate.dtype))
    of_up.store(dup.to(of_up.dtype))
    of_h.store(h.to(of_h.dtype))
    store_boxes(coord, coord.n + COLUMN, of_gate, of_up, of_h, 0)
    # The slot before is released once its boxes are read. The thread that stored them arrives for its warp.
    wait_until_read(1)
    release(work, (k_tile + STAGES - 1) % STAGES, COLUMN > 0)
    return sums


@gluon.jit
def go_back_at_once(work, coord, tile, k_tile, count):
    """All that becomes of a tile of dh, the CTA's `count`-th. Its parts have the slots from that of `k_tile` on,
    of which the last is not released."""
    STAGES: gl.constexpr = work.tiling.STAGES
    PARTS: gl.constexpr = work.tiling.EPILOGUE_SUBTILES
    layout: gl.constexpr = gl.SliceLayout(1, subtile(tile, 0, PARTS).type.layout)
    mbarrier.wait(work.full.index(k_tile % STAGES), k_tile // STAGES & 1)
    weights = work.epilogue.row_weights.index(count % _TILES).load(layout)
    sums = gl.zeros([work.tiling.BLOCK_M], gl.float32, layout)
    for i in gl.static_range(PARTS):
        sums += go_back_a_part(work, coord, subtile(tile, i, PARTS), weights, k_tile + i, i * work.tiling.BLOCK_K)
    store_row_sums(coord, sums, work.epilogue.row_places.index(count % _TILES).load(layout))


@gluon.jit
def consume_gradient(work):
    tile = gl.program_id(0)
    k_tile = 0
    count = 0
    group = work.schedule.first(tile)
    while tile < group.end:
        k_tiles = work.tiling.k_tiles(group.K)
        while tile < group.end:
            sums = multiply_next(work, k_tile, k_tiles)
            m, n = tile_coord(work, group, tile)  # not before: in registers meanwhile it would make others spill
            k_tile += k_tiles
            go_back_at_once(work, store_coord(work, group, m, n), sums, k_tile, count)
            k_tile += work.tiling.EPILOGUE_SUBTILES
            count += 1
            tile += gl.num_programs(0)
        group = work.schedule.next(group, tile)
    tma.store_wait(0)


@gluon.jit
def run_gradient(work):
    """Gives the CTA's warps their parts, as `run` of hopper/pipeline.py does."""
    gl.static_assert(work.schedule.GATHERS and work.tiling.CONSUMERS == 1, "one consumer group, and rows by an index")
    gl.warp_specialize([(consume_gradient, (work,)), (gather_with_parts, (work,))], [GATHER_WARPS], [GATHER_REGISTERS])
