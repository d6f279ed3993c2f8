"""The warps of a kernel that goes back through an activation.

The ring of k-tiles serves the epilogue as well: behind a tile's k-tiles the producer loads the parts of the
pre-activation z, a slot each, while the last products run. So the epilogue needs no buffers of its own, z is there when
the sums are, and the next tile's first k-tiles come while its last parts are computed.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma_wait

from ..epilogues.gated_gradient import PART, GatedGradient, wait_until_read
from ..records import gradient_descriptors
from .boxes import EVICT_FIRST, load_4d_hinted
from .gather import GATHER_REGISTERS, GATHER_WARPS, gather_tile, gathering_lanes
from .pipeline import release_before, start_k_tile, store_coord, zero_sums
from .record import word_now
from .schedules.ragged_m import LAST_ROW
from .work import Work, empty_slot, tile_coord


@gluon.jit
def make_gradient_work(schedule, tiling, scaling):
    """As make_work of hopper/work.py. The output's buffers are the slots' B, in two halves of A's size each."""
    B_SHAPE: gl.constexpr = (
        [tiling.BLOCK_K, tiling.BLOCK_N] if tiling.LAYOUT[1] == "n" else [tiling.BLOCK_N, tiling.BLOCK_K]
    )
    SWIZZLED: gl.constexpr = gl.NVMMASharedLayout(128, tiling.DTYPE.primitive_bitwidth, 2)
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    gl.static_assert(tiling.DTYPE == tiling.OUT and tiling.BLOCK_K == PART, "a part of z fills a slot's A")
    gl.static_assert(tiling.BLOCK_N == 2 * tiling.BLOCK_M, "and the other part and the output its B")
    gl.static_assert(tiling.STAGES <= tiling.BLOCK_N // PART, "all parts of a tile have all slots: gather_with_parts")
    full = mbarrier.allocate_mbarrier(batch=tiling.STAGES)
    b_ring = gl.allocate_shared_memory(tiling.DTYPE, [tiling.STAGES, B_SHAPE[0], B_SHAPE[1]], SWIZZLED)
    work = Work(
        schedule,
        gl.allocate_shared_memory(tiling.DTYPE, [tiling.STAGES, tiling.BLOCK_M, tiling.BLOCK_K], SWIZZLED),
        b_ring,
        b_ring.reinterpret(tiling.OUT, [2 * tiling.STAGES, tiling.BLOCK_M, PART], SWIZZLED),
        full,
        mbarrier.allocate_mbarrier(batch=tiling.STAGES),
        full,
        tiling,
        scaling,
        GatedGradient(
            gl.allocate_shared_memory(gl.float32, [2, tiling.BLOCK_M], PLAIN),
            gl.allocate_shared_memory(gl.int32, [2, tiling.BLOCK_M], PLAIN),
        ),
    )
    for i in gl.static_range(tiling.STAGES):
        mbarrier.init(work.full.index(i), count=schedule.ARRIVALS)
        mbarrier.init(work.empty.index(i), count=gl.num_warps())
    return work


@gluon.jit
def load_weights(record, first, count, rows: gl.constexpr, LAYOUT: gl.constexpr):
    """(weights, slots) of `rows` rows from `first` on: 0 and -1 where `count` rows are passed, and where a row has no
    slot."""
    row = gl.arange(0, rows, LAYOUT)
    slots = word_now(record + gradient_descriptors.slot).to(gl.pointer_type(gl.int32)) + first
    slot = gl.load(slots + row, mask=row < count, other=-1)
    known = (slot >= 0) & (slot < word_now(record + gradient_descriptors.entries))
    weights = word_now(record + gradient_descriptors.weights)
    kind = word_now(record + gradient_descriptors.weight_kind)
    if kind == 0:
        weight = gl.load(weights.to(gl.pointer_type(gl.float32)) + slot, mask=known, other=0.0)
    elif kind == 1:
        weight = gl.load(weights.to(gl.pointer_type(gl.float16)) + slot, mask=known, other=0.0).to(gl.float32)
    else:
        weight = gl.load(weights.to(gl.pointer_type(gl.bfloat16)) + slot, mask=known, other=0.0).to(gl.float32)
    weight *= word_now(record + gradient_descriptors.factor_bits).to(gl.int32).to(gl.float32, bitcast=True)
    return weight, gl.where(known, slot, -1)


@gluon.jit
def load_part(work, coord, slot, COLUMN: gl.constexpr):
    """Starts to load a part of z into a slot: gate's columns into its A, up's into the first half of its B."""
    barrier = work.full.index(slot)
    gate, up = work.a_ring.index(slot), work.c_buffers.index(2 * slot)
    last, policy = gl.to_tensor(LAST_ROW), gl.to_tensor(EVICT_FIRST)
    record, column = coord.record, coord.n + COLUMN
    WARP: gl.constexpr = work.tiling.BLOCK_M // 16  # the first that gathers, behind those that multiply 16 rows each
    mbarrier.expect(barrier, 2 * work.tiling.BLOCK_M * 128)
    load_4d_hinted(
        record + gradient_descriptors.z, column, coord.m, last, coord.stop, barrier, gate, 0, policy, WARP
    )  # fmt: skip
    load_4d_hinted(
        record + gradient_descriptors.z_up, column, coord.m, last, coord.stop, barrier, up, 0, policy, WARP
    )  # fmt: skip


@gluon.jit
def arrive(barrier):
    """Each thread arrives."""
    gl.inline_asm("mbarrier.arrive.shared::cta.b64 _, [$0];", "r", [barrier])


@gluon.jit
def prepare_rows(work, group, m, n, turn):
    """The weights of a tile's rows, and where their sums go: to the gradients of the weights where one tile has all
    columns, else to a row of sums for each tile of columns."""
    threads: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    first, left = group.start + m, group.stop - group.start - m
    weights, places = load_weights(group.record, first, left, work.tiling.BLOCK_M, threads)
    row = gl.arange(0, work.tiling.BLOCK_M, threads)
    if work.schedule.N > work.tiling.BLOCK_N:
        places = gl.where(row < left, n // work.tiling.BLOCK_N * work.schedule.total_M + first + row, -1)
    wanted = word_now(group.record + gradient_descriptors.row_sums) != 0
    work.epilogue.row_weights.index(turn).store(weights)
    work.epilogue.row_places.index(turn).store(gl.where(wanted, places, -1))


@gluon.jit
def load_parts(work, group, m, n, k_tile):
    """All parts of z for a tile."""
    coord = store_coord(work, group, m, n)
    for i in gl.static_range(work.tiling.BLOCK_N // PART):
        slot = empty_slot(work, k_tile)
        load_part(work, coord, slot, i * PART)
        arrive(work.full.index(slot))
        k_tile += 1


@gluon.jit
def gather_with_parts(work):
    """As `gather` of hopper/gather.py, with parts of z behind each tile's k-tiles.

    What a tile's rows need is loaded before its k-tiles, beside the rows' indices. The consumers read it when the first
    part is there. It takes the place of what the tile before the last needed. That is read no more: the last part of
    the tile between them got its slot after that tile's k-tiles were multiplied.
    """
    lanes = gathering_lanes(work)
    tile = gl.program_id(0)
    k_tile = 0
    count = 0
    group = work.schedule.first(tile)
    while tile < group.end:
        k_tiles = work.tiling.k_tiles(group.K)
        while tile < group.end:
            m, n = tile_coord(work, group, tile)
            prepare_rows(work, group, m, n, count % 2)
            k_tile = gather_tile(work, group, lanes, m, n, k_tile, k_tiles, False)
            load_parts(work, group, m, n, k_tile)
            k_tile += work.tiling.BLOCK_N // PART
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
            work.epilogue.store(work, store_coord(work, group, m, n), sums, k_tile, count)
            k_tile += work.tiling.BLOCK_N // PART
            count += 1
            tile += gl.num_programs(0)
        group = work.schedule.next(group, tile)
    tma.store_wait(0)


@gluon.jit
def run_gradient(work):
    """Gives the CTA's warps their parts, as `run` of hopper/pipeline.py does."""
    gl.static_assert(work.schedule.GATHERS and work.tiling.CONSUMERS == 1, "one consumer group, and rows by an index")
    gl.warp_specialize([(consume_gradient, (work,)), (gather_with_parts, (work,))], [GATHER_WARPS], [GATHER_REGISTERS])
