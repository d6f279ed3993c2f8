"""Row tiles that are as tall as their group asks, for `hopper_ragged_fitted`.

A group of 300 rows has three tiles of 128 rows, 22 % of them past its end. Here it has two, of 152 rows. wgmma
multiplies 64 rows of its first operand, no others, but any multiple of 8 columns of its second. So a tile is summed as
its transpose: columns of B are the 64 rows, rows of A the columns. Each of two consumer groups has half of a tile's
columns. All of B's columns are read for a tile of any height, so tall ones take less energy for a product. Energy is
what bounds these kernels: benchmarks/notes/skew.md.

- A plan (`make_plan`) says how tall tiles may be, so that the last wave of CTAs is full or ends early.
- Each CTA lists its tiles before it starts (`list_tiles`). No warp that loads or multiplies searches groups, and so
  there are registers for the sums of 192 rows.
- What multiplies is compiled for each number of rows from 64 on, since it is part of the instruction.
- A k-tile of A comes in boxes, as many as have rows of the tile. TMA reads zeros past its last row and writes nothing
  there.
- C passes through the slot of the ring whose products were the last: each consumer group has half of B's to itself.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from .boxes import commit_stores, load_4d
from .pipeline import apply_epilogue, release_before
from .schedules.ragged_m import LAST_ROW, SCAN_WINDOW, StoreCoord, ragged_row
from .store import halves
from .tiling import Tiling
from .wgmma import descriptor, through, wait_for_all_but

# aot/spec/kernels.py tells the host these two.
ROW_STEP = gl.constexpr(8)  # rows by which tiles differ
LISTED_TILES = gl.constexpr(128)  # that a CTA has at most
_COLUMNS = gl.constexpr(128)  # of a tile, of each consumer group
_LEAST_ROWS = gl.constexpr(64)  # that are multiplied: of fewer the operands take as long to be read
# Of a plan, which counts time in rows that are multiplied; aot/tuning/ragged_model.py has all four too.
_LIMITS = gl.constexpr(16)  # that it chooses from: BLOCK_M rows, and by ROW_STEP less each
_COLUMNS_AS_ROWS = gl.constexpr(69)  # what it takes to read all of B's columns, whatever a tile's height
_BEGIN_AS_ROWS = gl.constexpr(38400)  # by K: a tile's beginning and end
_HALF_WAVE = gl.constexpr(0.65)  # of a wave, for one whose tiles are cut in two
_NEVER = gl.constexpr(1 << 30)  # a tile that there is not


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


@gluon.aggregate
class Plan:
    """How rows are cut into tiles. CTAs take turns: one is a tile, or from `cut_from` on half of one's rows."""

    row_limit: gl.tensor  # of a tile; groups have as few row tiles as that allows
    cut_from: gl.tensor


@gluon.jit
def make_plan(schedule):
    """The row limit by which the last CTA is done first, as far as the mean of all tiles tells.

    Lower tiles are more, and fill the last wave otherwise. Where half of the CTAs or more have no tile in it, those of
    the others are cut in two. Of more groups than one scan shows, nothing is weighed.
    """
    BLOCK_M: gl.constexpr = schedule.tiling.BLOCK_M
    lanes: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    by_limit: gl.constexpr = gl.BlockedLayout([1, _LIMITS], [32, 1], [gl.num_warps(), 1], [1, 0])
    lower = gl.arange(0, _LIMITS, gl.SliceLayout(0, by_limit))
    limits = (BLOCK_M - ROW_STEP * lower).to(gl.float32)
    starts, ends = schedule.ends(gl.to_tensor(0), gl.to_tensor(0), lanes)
    rows = gl.convert_layout(ends - starts, gl.SliceLayout(1, by_limit)).to(gl.float32)
    rows = gl.expand_dims(rows, 1)
    # Divisions are not exact: half a row less, or half a tile more, has no integer near.
    row_tiles = gl.floor((rows - 0.5) / gl.expand_dims(limits, 0)) + 1
    all_row_tiles = gl.sum(row_tiles, 0)
    all_rows = gl.sum(gl.maximum(rows + ROW_STEP // 2 * row_tiles, _LEAST_ROWS * row_tiles), 0)
    each = all_rows / gl.maximum(all_row_tiles, 1)
    each += _COLUMNS_AS_ROWS + _BEGIN_AS_ROWS / gl.maximum(schedule.K, 1).to(gl.float32)
    # The rows behind as many groups as the scan shows are one more, which it does not show.
    rest = gl.where(schedule.groups < SCAN_WINDOW, 0, schedule.total_M - gl.max(ends, 0)).to(gl.float32)
    all_row_tiles += gl.floor((rest - 0.5) / limits) + 1
    tiles = all_row_tiles * gl.cdiv(schedule.N, schedule.tiling.BLOCK_N).to(gl.float32)
    ctas = gl.num_programs(0).to(gl.float32)
    waves = gl.floor((tiles + 0.5) / ctas)
    last = tiles - waves * ctas
    can_cut = 2 * last <= ctas
    takes = waves * each + gl.where(last > 0, gl.where(can_cut, _HALF_WAVE * each, each), 0)
    takes = gl.where((waves < LISTED_TILES - 1) | (lower == 0), takes, float("inf"))
    best = gl.min(gl.where(takes <= gl.min(takes, 0), lower, _LIMITS), 0)
    cut_from = gl.max(gl.where((lower == best) & can_cut & (waves < LISTED_TILES - 1), tiles - last, -1), 0)
    is_seen = schedule.groups <= SCAN_WINDOW
    row_limit = gl.where(is_seen, BLOCK_M - ROW_STEP * best, BLOCK_M)
    return Plan(row_limit, gl.where(is_seen & (cut_from >= 0), cut_from.to(gl.int32), _NEVER))


@gluon.aggregate
class Tile:
    """A tile of this CTA. The schedule takes it for the group that it is of, and for the place where it goes in C."""

    record: gl.tensor
    index: gl.tensor  # of the group
    m: gl.tensor  # a ragged_row
    stop: gl.tensor  # the row of A and C where the tile ends, or the group before it
    n: gl.tensor
    rows: gl.tensor
    N: gl.tensor


@gluon.jit
def count_below(ends, tile):
    """How many of SCAN_WINDOW rising ends are not above each tile."""
    passed = gl.zeros_like(tile)
    for i in gl.static_range(7):
        passed = gl.where(ends.gather(passed + ((64 >> i) - 1), 0) <= tile, passed + (64 >> i), passed)
    return gl.where(ends.gather(passed, 0) <= tile, passed + 1, passed)


@gluon.jit
def find_groups(work, row_limit, tile):
    """Of each tile's group: index, first tile, start and stop. And the number of all tiles."""
    schedule = work.schedule
    # The ring is not in use yet.
    layout: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    BYTES: gl.constexpr = work.tiling.STAGES * work.tiling.BLOCK_N * work.tiling.BLOCK_K * 2
    words = work.b_ring.reinterpret(gl.int32, [BYTES // (4 * SCAN_WINDOW), SCAN_WINDOW], layout)
    tile_ends, row_ends = words.index(0), words.index(1)
    index, first, start, stop = gl.zeros_like(tile), gl.zeros_like(tile), gl.zeros_like(tile), gl.zeros_like(tile)
    zero = gl.to_tensor(0)
    window = schedule.scan(zero, zero, zero, row_limit)
    has_more = True
    while has_more:
        tile_ends.store(window.tile_ends)
        row_ends.store(window.row_ends)
        gl.barrier()
        passed = count_below(tile_ends, tile)
        is_here = (passed < SCAN_WINDOW) & (tile >= window.tiles_before)
        at, before = gl.minimum(passed, SCAN_WINDOW - 1), gl.maximum(passed - 1, 0)
        index = gl.where(is_here, window.at + passed, index)
        first = gl.where(is_here, gl.where(passed > 0, tile_ends.gather(before, 0), window.tiles_before), first)
        start = gl.where(is_here, gl.where(passed > 0, row_ends.gather(before, 0), window.rows_before), start)
        stop = gl.where(is_here, row_ends.gather(at, 0), stop)
        gl.barrier()
        has_more = window.at + SCAN_WINDOW <= schedule.groups
        if has_more:
            last, rows = gl.max(window.tile_ends, 0), gl.max(window.row_ends, 0)
            window = schedule.scan(window.at + SCAN_WINDOW, last, rows, row_limit)
    fence_async_shared()  # from here on TMA writes the ring
    return index, first, start, stop, gl.max(window.tile_ends, 0)


@gluon.jit
def list_tiles(work, plan, listed):
    """Lists the tiles of this CTA, and returns how many they are."""
    tiling = work.tiling
    lanes: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    turn = gl.program_id(0) + gl.num_programs(0) * gl.arange(0, LISTED_TILES, lanes)
    is_cut = turn >= plan.cut_from
    tile = gl.where(is_cut, plan.cut_from + (turn - plan.cut_from) // 2, turn)
    index, first, start, stop, tiles = find_groups(work, plan.row_limit, tile)

    # As Tiling.coord. All row tiles of a group are alike: others fall out of step, and B comes anew for each.
    M = gl.maximum(stop - start, 1)
    m_tiles = gl.cdiv(M, plan.row_limit)
    n_tiles = gl.cdiv(work.schedule.N, tiling.BLOCK_N)
    band = (tile - first) // (tiling.GROUP_M * n_tiles)
    band_tiles = gl.maximum(gl.minimum(m_tiles - band * tiling.GROUP_M, tiling.GROUP_M), 1)
    within = (tile - first) % (tiling.GROUP_M * n_tiles)
    rows = gl.cdiv(M, ROW_STEP * m_tiles) * ROW_STEP
    m = (band * tiling.GROUP_M + within % band_tiles) * rows
    upper = gl.cdiv(rows, 2 * ROW_STEP) * ROW_STEP
    is_lower = is_cut & ((turn - plan.cut_from) % 2 == 1)
    m = gl.where(is_lower, m + upper, m)
    rows = gl.where(is_lower, rows - upper, gl.where(is_cut, upper, rows))
    stop = gl.minimum(stop, start + m + rows)

    listed.index(0).store(ragged_row(start, stop, m))
    listed.index(1).store(stop)
    listed.index(2).store(within // band_tiles * tiling.BLOCK_N)
    listed.index(3).store(index * 256 + rows)
    turns = tiles + gl.maximum(tiles - plan.cut_from, 0)
    turns_of_cta = gl.cdiv(gl.maximum(turns - gl.program_id(0), 0), gl.num_programs(0))
    return gl.minimum(turns_of_cta, LISTED_TILES)


@gluon.jit
def listed_word(listed, FIELD: gl.constexpr, turn):
    """In PTX, as one thread's load: a tensor of one element would go through a layout."""
    return gl.inline_asm(
        "{ .reg .b32 at; add.u32 at, $1, $2; ld.shared.b32 $0, [at]; }",
        "=r,r,r",
        [listed.index(FIELD), 4 * turn],
        gl.int32,
    )


@gluon.jit
def tile_of(work, listed, turn):
    m, stop, n = listed_word(listed, 0, turn), listed_word(listed, 1, turn), listed_word(listed, 2, turn)
    index_and_rows = listed_word(listed, 3, turn)
    return Tile(work.schedule.base, index_and_rows >> 8, m, stop, n, index_and_rows & 255, work.schedule.N)


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
    boxes = gl.cdiv(gl.maximum(tile.rows, _LEAST_ROWS), BOX_ROWS)
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
        first_k = gl.where(tile.index < work.schedule.groups, 0, work.schedule.K)
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
def zero_rows(ROWS: gl.constexpr):
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[gl.num_warps(), 1], instr_shape=[16, ROWS, 16]
    )
    return gl.zeros([_COLUMNS, ROWS], gl.float32, layout)


@gluon.jit
def zero_sums(work):
    PARTS: gl.constexpr = parts_of(work.tiling.BLOCK_M)
    return zero_rows(PARTS[0]), zero_rows(PARTS[1])


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
    tma.store_wait(0)
    gl.barrier()  # as in hopper/store.py
    buffer.permute((1, 0)).store(values.to(buffer.dtype))
    fence_async_shared()
    gl.barrier()
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
def consume(work, listed, turns, ME: gl.constexpr):
    """Consumer group ME: its half of the columns of each tile."""
    k_tile = 0
    for turn in range(0, turns):
        tile = tile_of(work, listed, turn)
        k_tiles = k_tiles_of(work, tile)
        sums = multiply_fitted(work, tile.rows, k_tile, k_tiles, _LEAST_ROWS, work.tiling.BLOCK_M, ME)
        k_tile += k_tiles
        slot = (k_tile - 1) % work.tiling.STAGES
        for i in gl.static_range(len(sums)):
            store_sums(work, tile, sums[i], slot, rows_before(work.tiling.BLOCK_M, i), ME)
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
