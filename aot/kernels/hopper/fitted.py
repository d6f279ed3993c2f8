"""Row tiles that are as tall as their group asks, for `hopper_ragged_fitted`.

A group of 300 rows has three tiles of 128 rows, 22 % of them past its end. Here it has two, of 152 rows. wgmma
multiplies 64 rows of its first operand, no others, but any multiple of 8 columns of its second. So a tile is summed as
its transpose: columns of B are the 64 rows, rows of A the columns. Each of two consumer groups has half of a tile's
columns. All of B's columns are read for a tile of any height, so tall ones take less energy for a product. Energy is
what bounds these kernels: benchmarks/notes/skew.md.

- What multiplies is compiled for each number of rows from 64 on, since it is part of the instruction.
- A k-tile of A comes in boxes, as many as have rows of the tile. TMA reads zeros past its last row and writes nothing
  there.
- C passes through the slot of the ring whose products were the last: each consumer group has half of B's to itself.

A fitted tile reads its rows of A four times from shared memory, once for each 64 columns of B. A plain tile of 128 rows
has a sixth fewer reads: each consumer group multiplies 64 rows by all columns, so that B is read twice and A once.
Groups a little below a multiple of 128 rows have plain tiles. hopper/tile_list.py chooses, and lists a CTA's tiles.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

from .boxes import commit_stores, load_4d
from .pipeline import apply_epilogue, release_before
from .schedules.ragged_m import LAST_ROW, StoreCoord
from .store import fill, halves
from .tile_list import LEAST_ROWS, LISTED_TILES, PLAIN_ROWS, ROW_STEP, list_tiles, make_plan, tile_of
from .tiling import Tiling
from .wgmma import descriptor, through, wait_for_all_but
from .work import full_slot

_COLUMNS = gl.constexpr(128)  # of a tile, of each consumer group


@gluon.jit
def make_fitted_tiling(
    DTYPE: gl.constexpr, OUT: gl.constexpr, LAYOUT: gl.constexpr,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr,
    RASTER: gl.constexpr, CONSUMERS: gl.constexpr, SPLIT: gl.constexpr, SLICES: gl.constexpr,
):  # fmt: skip
    """As make_tiling. SPLIT is that of rows into boxes, SLICES that of columns into consumer groups."""
    gl.static_assert(BLOCK_N == SLICES * _COLUMNS and CONSUMERS == 2 and SLICES == 2)
    gl.static_assert(BLOCK_K == 64, "rows of a k-tile have 128 bytes of K")
    return Tiling(
        DTYPE, OUT, LAYOUT, BLOCK_M, BLOCK_N, BLOCK_K, STAGES,
        RASTER, CONSUMERS, False, True, BLOCK_M // SPLIT, 0, False, True, SPLIT, 1, 1,
    )  # fmt: skip


@gluon.jit
def k_tiles_of(work, tile):
    """Rows behind the last group have one, past K and so all zeros, for its slot: they pass through it to C."""
    return gl.where(tile.index < work.schedule.groups, work.tiling.k_tiles(work.schedule.K), 1)


@gluon.jit
def load_k_tile(work, tile, k, slot):
    """As many boxes of A as have rows of the tile, and B's columns.

    Boxes are loaded in loops: one after the other they take registers that the producer has not.
    """
    tiling = work.tiling
    barrier = work.full.index(slot)
    a, b = work.a_ring.index(slot * tiling.A_PANELS), work.b_ring.index(slot)
    BOX_ROWS: gl.constexpr = tiling.CONSUMER_M
    boxes = gl.cdiv(gl.maximum(tile.rows, LEAST_ROWS), BOX_ROWS)
    gl.inline_asm(  # mbarrier.expect takes a constant
        "{ .reg .pred one; elect.sync _|one, 0xffffffff; @one mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1; }",
        "r,r",
        [barrier, (boxes * BOX_ROWS + tiling.BLOCK_N) * 128],
    )
    for i in range(0, boxes):
        row = tile.m + i * BOX_ROWS
        load_4d(tile.record, k, row, gl.to_tensor(LAST_ROW), tile.stop, barrier, a, i * BOX_ROWS * 128)
    if tiling.LAYOUT[1] == "n":
        for i in range(0, tiling.BLOCK_N // 64):
            work.schedule.load_b(tile, tile.n + i * 64, k, barrier, b, i * tiling.BLOCK_K * 128)
    else:
        work.schedule.load_b(tile, k, tile.n, barrier, b, 0)


@gluon.jit
def produce(work, listed, turns):
    """The producer warp, as in hopper/load.py."""
    STAGES: gl.constexpr = work.tiling.STAGES
    k_tile = 0
    for turn in range(0, turns):
        tile = tile_of(work, listed, turn)
        # For rows behind the last group what lies past K is loaded, zeros. TMA takes no K that is not whole 16 bytes.
        past_k = work.tiling.k_tiles(work.schedule.K) * work.tiling.BLOCK_K
        first_k = gl.where(tile.index < work.schedule.groups, 0, past_k)
        for i in range(0, k_tiles_of(work, tile)):
            slot = k_tile % STAGES
            mbarrier.wait(work.empty.index(slot), (k_tile // STAGES & 1) ^ 1)
            load_k_tile(work, tile, first_k + i * work.tiling.BLOCK_K, slot)
            k_tile += 1


@gluon.constexpr_function
def parts_of(rows):
    """Powers of two that add up to `rows`, falling: the sums of a tile are tensors of as many rows."""
    return [1 << i for i in reversed(range(8)) if rows >> i & 1]


@gluon.constexpr_function
def rows_before(rows, part):
    return sum(parts_of(rows)[:part])


@gluon.constexpr_function
def _products(rows, most, columns_contiguous, dtype):
    """The PTX of a k-tile's products, which are added to the sums or, with `adds` 0, take their place.

    Operands: the sums of `most` rows, in tensors of parts_of(most) rows and two times 64 columns, twice, as they are
    tied; the addresses of B's and of A's k-tile; `adds`.
    """
    kind = {"fp16": "f16", "bf16": "bf16"}[str(dtype)]
    of_b, of_a, adds = (f"${2 * most + i}" for i in range(3))
    # From 16 of K to the next, in units of 16 bytes: rows of a box, or bytes of its rows. 64 columns are 8192 bytes.
    step_b, step_a, half_of_b = (16 * 128 if columns_contiguous else 32) // 16, 32 // 16, 8192 // 16

    def product(half, place):
        registers = []
        for i, part in enumerate(parts_of(most)):
            first = rows_before(most, i) + half * part // 2
            registers += range(first, first + part // 2)
        sums = ", ".join(f"${i}" for i in registers[: rows // 2])
        shape = f"m64n{rows}k16.f32.{kind}.{kind}"
        return (
            f"wgmma.mma_async.sync.aligned.{shape} {{{sums}}}, {place}, a, adds, 1, 1, {int(columns_contiguous)}, 0; "
        )

    both = product(0, "b") + product(1, "c")
    further = f"add.s64 a, a, {step_a}; add.s64 b, b, {step_b}; add.s64 c, c, {step_b}; "
    return (
        "{ .reg .b32 at; .reg .b64 a, b, c; .reg .pred adds; "
        + descriptor("a", of_a) + descriptor("b", of_b) + f"add.s64 c, b, {half_of_b}; "
        + f"setp.ne.b32 adds, {adds}, 0; wgmma.fence.sync.aligned; "
        + (further).join([both + "setp.eq.b32 adds, 0, 0; ", both, both, both])
        + "wgmma.commit_group.sync.aligned; }"
    )  # fmt: skip


@gluon.constexpr_function
def _registers(sums):
    """A thread's, of all parts of the sums."""
    return sum(part.shape[1] for part in sums)


@gluon.jit
def through_sums(TEXT: gl.constexpr, sums, operands, KINDS: gl.constexpr):
    """The sums, through assembly that may change them."""
    gl.static_assert(len(sums) == 2)
    CONSTRAINTS: gl.constexpr = through(_registers(sums), KINDS)
    return gl.inline_asm(TEXT, CONSTRAINTS, sums + operands, (sums[0].type, sums[1].type))


@gluon.jit
def start_fitted(work, k_tile, sums, adds, ROWS: gl.constexpr, ME: gl.constexpr):
    """The products of a k-tile once its slot is full: B^T times A^T. They are in flight until `wait_fitted`."""
    tiling = work.tiling
    STAGES: gl.constexpr = tiling.STAGES
    COLUMNS_CONTIGUOUS: gl.constexpr = tiling.LAYOUT[1] == "n"
    PRODUCTS: gl.constexpr = _products(ROWS, tiling.BLOCK_M, COLUMNS_CONTIGUOUS, tiling.DTYPE)
    slot = k_tile % STAGES
    mbarrier.wait(work.full.index(slot), k_tile // STAGES & 1)
    a = work.a_ring.index(slot * tiling.A_PANELS)
    b = work.b_ring.index(slot).slice(ME * _COLUMNS, _COLUMNS, 1 if COLUMNS_CONTIGUOUS else 0)
    return through_sums(PRODUCTS, sums, (b, a, adds), "rrr")


@gluon.jit
def wait_fitted(sums, BATCHES: gl.constexpr, ROWS: gl.constexpr):
    """The sums, when but so many batches are done. `ROWS` makes the text of the assembly another one for each number
    of rows: LLVM moves what is alike at the ends of branches behind them, and with it sums that are in flight."""
    return through_sums(wait_for_all_but(BATCHES, ROWS), sums, (), "")


@gluon.jit
def zeros(M: gl.constexpr, N: gl.constexpr):
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[gl.num_warps(), 1], instr_shape=[16, N, 16]
    )
    return gl.zeros([M, N], gl.float32, layout)


@gluon.jit
def zero_sums(work):
    PARTS: gl.constexpr = parts_of(work.tiling.BLOCK_M)
    return zeros(_COLUMNS, PARTS[0]), zeros(_COLUMNS, PARTS[1])


@gluon.jit
def multiply(work, k_tile, k_tiles, ROWS: gl.constexpr, ME: gl.constexpr):
    """As `multiply` of hopper/pipeline.py, of a tile of ROWS rows. The slot of the last k-tile is still C's to pass."""
    sums = zero_sums(work)
    for i in range(0, k_tiles):
        sums = start_fitted(work, k_tile, sums, gl.where(i > 0, 1, 0), ROWS, ME)
        sums = wait_fitted(sums, 1, ROWS)
        tma.store_wait(0)  # through the slot that is released first the tile before went to C
        release_before(work, k_tile, k_tile > 0)
        k_tile += 1
    return wait_fitted(sums, 0, ROWS)


@gluon.jit
def multiply_fitted(work, rows, k_tile, k_tiles, LEAST: gl.constexpr, MOST: gl.constexpr, ME: gl.constexpr):
    """The sums of a tile of `rows` rows, by the products of as many rows, or of LEAST where there are fewer.

    Branches halve what is left: each is a jump to code that may have to be fetched, 0.1 us.
    """
    if LEAST < MOST:
        MIDDLE: gl.constexpr = (LEAST + MOST) // 2 // ROW_STEP * ROW_STEP
        if rows <= MIDDLE:
            sums = multiply_fitted(work, rows, k_tile, k_tiles, LEAST, MIDDLE, ME)
        else:
            sums = multiply_fitted(work, rows, k_tile, k_tiles, MIDDLE + ROW_STEP, MOST, ME)
    else:
        sums = multiply(work, k_tile, k_tiles, LEAST, ME)
    return sums


@gluon.jit
def store_rows(work, tile, values, slot, ROW: gl.constexpr, ME: gl.constexpr):
    """The rows of a tile from its row ROW on, those that it has: consumer group ME's columns."""
    LEADER: gl.constexpr = ME * gl.num_warps() * 32
    BOX_ROWS: gl.constexpr = work.tiling.CONSUMER_M
    buffer = work.c_buffers.index(2 * slot + ME)
    fill(buffer, values, 0, True)
    for i in gl.static_range(values.shape[1] // BOX_ROWS):
        if tile.rows > ROW + i * BOX_ROWS:
            place = StoreCoord(tile.record, tile.m + (ROW + i * BOX_ROWS), tile.stop, tile.n)
            for j in gl.static_range(_COLUMNS // 64):
                offset = (j * buffer.shape[0] + i * BOX_ROWS) * 128
                work.schedule.store(place, tile.n + ME * _COLUMNS + j * 64, buffer, offset, LEADER)
    commit_stores(LEADER)


@gluon.jit
def store_part(work, tile, values, slot, ROW: gl.constexpr, ME: gl.constexpr):
    """As store_rows, of as many rows as `values` has, by as many as a buffer has."""
    if tile.rows > ROW:
        if values.shape[1] > work.c_buffers.shape[1]:
            upper, lower = halves(values)
            store_part(work, tile, upper, slot, ROW, ME)
            store_part(work, tile, lower, slot, ROW + lower.shape[1], ME)
        else:
            store_rows(work, tile, values, slot, ROW, ME)


@gluon.jit
def store_sums(work, tile, sums, slot, ROW: gl.constexpr, ME: gl.constexpr):
    if tile.rows > ROW:
        store_part(work, tile, apply_epilogue(work, tile, sums, tile.n + ME * _COLUMNS), slot, ROW, ME)


@gluon.jit
def consume_fitted(work, tile, k_tile, k_tiles, ME: gl.constexpr):
    """Consumer group ME's half of the columns of a fitted tile."""
    sums = multiply_fitted(work, tile.rows, k_tile, k_tiles, LEAST_ROWS, work.tiling.BLOCK_M, ME)
    slot = (k_tile + k_tiles - 1) % work.tiling.STAGES
    for i in gl.static_range(len(sums)):
        store_sums(work, tile, sums[i], slot, rows_before(work.tiling.BLOCK_M, i), ME)


@gluon.jit
def multiply_plain(work, k_tile, k_tiles, ME: gl.constexpr):
    """As `multiply`, of consumer group ME's rows of a plain tile."""
    tiling = work.tiling
    ROWS: gl.constexpr = PLAIN_ROWS // 2
    PARTS: gl.constexpr = tiling.BLOCK_M // ROWS  # of a k-tile of A; the last one is empty
    SHAPE: gl.constexpr = [PARTS * tiling.STAGES, ROWS, tiling.BLOCK_K]
    a_parts = work.a_ring.reinterpret(tiling.DTYPE, SHAPE, work.a_ring.type.layout)
    sums = zeros(ROWS, tiling.BLOCK_N)
    for _ in range(0, k_tiles):
        slot = full_slot(work, k_tile)
        b = work.b_ring.index(slot)
        if tiling.LAYOUT[1] == "t":
            b = b.permute((1, 0))
        sums = warpgroup_mma(a_parts.index(slot * PARTS + ME), b, sums, is_async=True)
        sums = warpgroup_mma_wait(1, (sums,))
        tma.store_wait(0)  # as in `multiply`
        release_before(work, k_tile, k_tile > 0)
        k_tile += 1
    return warpgroup_mma_wait(0, (sums,))


@gluon.jit
def consume_plain(work, tile, k_tile, k_tiles, ME: gl.constexpr):
    """Consumer group ME's half of the rows of a plain tile, which has no bias."""
    LEADER: gl.constexpr = ME * gl.num_warps() * 32
    BOX_ROWS: gl.constexpr = work.tiling.CONSUMER_M
    BOXES: gl.constexpr = PLAIN_ROWS // 2 // BOX_ROWS
    gl.static_assert(work.epilogue.SUMS_PER_OUTPUT == 1)
    columns = halves(multiply_plain(work, k_tile, k_tiles, ME))
    # Both groups read all of B: each waits for the other's products. Triton numbers its own barriers from 0 on.
    gl.inline_asm("barrier.sync 15, 256;", "", [])
    buffer = work.c_buffers.index(2 * ((k_tile + k_tiles - 1) % work.tiling.STAGES) + ME)
    for half in gl.static_range(2):
        fill(buffer, columns[half], 0)
        for i in range(0, BOXES * (_COLUMNS // 64)):
            row, column = i % BOXES * BOX_ROWS, i // BOXES
            place = StoreCoord(tile.record, tile.m + (ME * (PLAIN_ROWS // 2) + row), tile.stop, tile.n)
            offset = (column * buffer.shape[0] + row) * 128
            work.schedule.store(place, tile.n + half * _COLUMNS + column * 64, buffer, offset, LEADER)
        commit_stores(LEADER)


@gluon.jit
def consume(work, listed, turns, ME: gl.constexpr):
    """Consumer group ME: its half of each tile."""
    k_tile = 0
    for turn in range(0, turns):
        tile = tile_of(work, listed, turn)
        k_tiles = k_tiles_of(work, tile)
        if tile.is_plain != 0:
            consume_plain(work, tile, k_tile, k_tiles, ME)
        else:
            consume_fitted(work, tile, k_tile, k_tiles, ME)
        k_tile += k_tiles
    tma.store_wait(0)


@gluon.jit
def run_fitted(work):
    """As `run` of hopper/pipeline.py. All warps of the first consumer group make the plan and the list."""
    listed = gl.allocate_shared_memory(gl.int32, [4, LISTED_TILES], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    turns = list_tiles(work, make_plan(work.schedule), listed)
    gl.warp_specialize(
        [
            (consume, (work, listed, turns, 0)),
            (consume, (work, listed, turns, 1)),
            (produce, (work, listed, turns)),
        ],
        [4, 1],
        [232, work.schedule.PRODUCER_REGISTERS],
    )
