"""Which tiles a CTA of `hopper_ragged_fitted` has.

- A plan (`make_plan`) says how tall tiles may be, so that the last wave of CTAs is full or ends early.
- Each CTA lists its tiles before it starts (`list_tiles`). No warp that loads or multiplies searches groups, and so
  there are registers for the sums of 192 rows.

Tiles of a group are all fitted, or all plain: hopper/fitted.py says what these are.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared

from ..records import grouped_descriptors
from .record import word
from .schedules.ragged_m import SCAN_WINDOW, ScanWindow, plus, ragged_row

# aot/spec/kernels.py tells the host these two.
ROW_STEP = gl.constexpr(8)  # rows by which fitted tiles differ
LISTED_TILES = gl.constexpr(128)  # that a CTA has at most
LEAST_ROWS = gl.constexpr(64)  # of a fitted tile, that are multiplied: of fewer the operands take as long to be read
PLAIN_ROWS = gl.constexpr(128)  # of a plain tile
# Of a plan, which counts time in rows that are multiplied; aot/tuning/ragged_model.py has all but those of plain tiles.
_LIMITS = gl.constexpr(16)  # that it chooses from: BLOCK_M rows, and by ROW_STEP less each
_COLUMNS_AS_ROWS = gl.constexpr(69)  # what it takes to read all of B's columns, whatever a fitted tile's height
_PLAIN_AS_ROWS = gl.constexpr(183)  # a plain tile, with all that it reads
_BEGIN_AS_ROWS = gl.constexpr(38400)  # by K: a tile's beginning and end
_HALF_WAVE = gl.constexpr(0.65)  # of a wave, for one whose tiles are cut in two
_NEVER = gl.constexpr(1 << 30)  # a tile that there is not


@gluon.aggregate
class Plan:
    """How rows are cut into tiles. CTAs take turns: one is a tile, or from `cut_from` on half of one's rows."""

    row_limit: gl.tensor  # of a fitted tile; groups have as few row tiles as that allows
    cut_from: gl.tensor
    begin: gl.tensor  # a tile's beginning and end, in rows
    may_be_plain: gl.tensor  # groups have plain tiles where these take less


@gluon.jit
def choose_height(rows, row_tiles, begin, may_be_plain):
    """Of a group that would have so many fitted row tiles: what its tiles take, how many they are, whether plain ones.

    In integers: the plan and each list must come to the same. Beyond 2**28 rows of a group they may wrap, and either
    height may come out, for all alike.
    """
    fitted_takes = gl.maximum(rows + ROW_STEP // 2 * row_tiles, LEAST_ROWS * row_tiles)
    fitted_takes += row_tiles * (_COLUMNS_AS_ROWS + begin)
    plain_tiles = gl.cdiv(rows, PLAIN_ROWS)
    plain_takes = plain_tiles * (_PLAIN_AS_ROWS + begin)
    is_plain = may_be_plain & (plain_takes < fitted_takes)
    return gl.where(is_plain, plain_takes, fitted_takes), gl.where(is_plain, plain_tiles, row_tiles), is_plain


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
    begin = _BEGIN_AS_ROWS // gl.maximum(schedule.K, schedule.tiling.BLOCK_K)
    n_tiles = gl.cdiv(schedule.N, schedule.tiling.BLOCK_N)
    # The host makes the grid so large that a CTA can list tiles of BLOCK_M rows. Plain ones may be more.
    most_row_tiles = (LISTED_TILES - 1) * gl.num_programs(0) // n_tiles
    may_be_plain = schedule.total_M // PLAIN_ROWS + schedule.groups + 1 <= most_row_tiles
    may_be_plain = may_be_plain & (word(schedule.base + grouped_descriptors.bias) == 0)
    starts, ends = schedule.ends(gl.to_tensor(0), gl.to_tensor(0), lanes)
    rows = gl.expand_dims(gl.convert_layout(ends - starts, gl.SliceLayout(1, by_limit)), 1)
    # Divisions are not exact: half a row less, or half a tile more, has no integer near.
    row_tiles = gl.floor((rows.to(gl.float32) - 0.5) / gl.expand_dims(limits, 0)).to(gl.int32) + 1
    group_takes, row_tiles, _ = choose_height(rows, row_tiles, begin, may_be_plain)
    # The rows behind as many groups as the scan shows are one more, which it does not show. They may be plain too: all
    # tiles are to be counted, or some would come twice from `cut_from` on, and CTAs have more than they can list.
    shows_rest = (schedule.groups < SCAN_WINDOW) | (word(schedule.base + grouped_descriptors.skips_rest) != 0)
    rest = gl.where(shows_rest, 0, schedule.total_M - gl.max(ends, 0))
    rest_tiles = gl.floor((rest.to(gl.float32) - 0.5) / limits).to(gl.int32) + 1
    rest_takes, rest_tiles, _ = choose_height(rest, rest_tiles, begin, may_be_plain)
    all_row_tiles = (gl.sum(row_tiles, 0) + rest_tiles).to(gl.float32)
    each = (gl.sum(group_takes.to(gl.float32), 0) + rest_takes.to(gl.float32)) / gl.maximum(all_row_tiles, 1)
    tiles = all_row_tiles * n_tiles.to(gl.float32)
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
    cut_from = gl.where(is_seen & (cut_from >= 0), cut_from.to(gl.int32), _NEVER)
    return Plan(row_limit, cut_from, begin, may_be_plain)


@gluon.jit
def row_tiles_of(plan, rows):
    """How many row tiles a group has, and whether they are plain."""
    _, row_tiles, is_plain = choose_height(rows, gl.cdiv(rows, plan.row_limit), plan.begin, plan.may_be_plain)
    return row_tiles, is_plain


@gluon.jit
def scan(schedule, plan, at, tiles_before, rows_before):
    """As RaggedMSchedule.scan."""
    lanes: gl.constexpr = gl.BlockedLayout([SCAN_WINDOW // 32], [32], [gl.num_warps()], [0])
    starts, ends = schedule.ends(at, rows_before, lanes)
    row_tiles, _ = row_tiles_of(plan, ends - starts)
    tiles = row_tiles * gl.cdiv(schedule.N, schedule.tiling.BLOCK_N)
    return ScanWindow(at, tiles_before, rows_before, tiles_before + gl.associative_scan(tiles, 0, plus), ends)


@gluon.aggregate
class Tile:
    """A tile of this CTA. The schedule takes it for the group that it is of, and for the place where it goes in C."""

    record: gl.tensor
    index: gl.tensor  # of the group
    m: gl.tensor  # a ragged_row
    stop: gl.tensor  # the row of A and C where the tile ends, or the group before it
    n: gl.tensor
    rows: gl.tensor
    is_plain: gl.tensor
    N: gl.tensor


@gluon.jit
def count_below(ends, tile):
    """How many of SCAN_WINDOW rising ends are not above each tile."""
    passed = gl.zeros_like(tile)
    for i in gl.static_range(7):
        passed = gl.where(ends.gather(passed + ((64 >> i) - 1), 0) <= tile, passed + (64 >> i), passed)
    return gl.where(ends.gather(passed, 0) <= tile, passed + 1, passed)


@gluon.jit
def find_groups(work, plan, tile):
    """Of each tile's group: index, first tile, start and stop. And the number of all tiles."""
    schedule = work.schedule
    # The ring is not in use yet.
    layout: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    BYTES: gl.constexpr = work.tiling.STAGES * work.tiling.BLOCK_N * work.tiling.BLOCK_K * 2
    words = work.b_ring.reinterpret(gl.int32, [BYTES // (4 * SCAN_WINDOW), SCAN_WINDOW], layout)
    tile_ends, row_ends = words.index(0), words.index(1)
    index, first, start, stop = gl.zeros_like(tile), gl.zeros_like(tile), gl.zeros_like(tile), gl.zeros_like(tile)
    at, tiles, rows = gl.to_tensor(0), gl.to_tensor(0), gl.to_tensor(0)
    while at <= schedule.groups:  # the rows behind the last group are one more
        window = scan(schedule, plan, at, tiles, rows)
        tile_ends.store(window.tile_ends)
        row_ends.store(window.row_ends)
        gl.barrier()
        passed = count_below(tile_ends, tile)
        is_here = (passed < SCAN_WINDOW) & (tile >= tiles)
        here, before = gl.minimum(passed, SCAN_WINDOW - 1), gl.maximum(passed - 1, 0)
        index = gl.where(is_here, at + passed, index)
        first = gl.where(is_here, gl.where(passed > 0, tile_ends.gather(before, 0), tiles), first)
        start = gl.where(is_here, gl.where(passed > 0, row_ends.gather(before, 0), rows), start)
        stop = gl.where(is_here, row_ends.gather(here, 0), stop)
        gl.barrier()
        tiles, rows = gl.max(window.tile_ends, 0), gl.max(window.row_ends, 0)
        at += SCAN_WINDOW
    fence_async_shared()  # from here on TMA writes the ring
    return index, first, start, stop, tiles


@gluon.jit
def list_tiles(work, plan, listed):
    """Lists the tiles of this CTA, and returns how many they are."""
    tiling = work.tiling
    lanes: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    turn = gl.program_id(0) + gl.num_programs(0) * gl.arange(0, LISTED_TILES, lanes)
    is_cut = turn >= plan.cut_from
    tile = gl.where(is_cut, plan.cut_from + (turn - plan.cut_from) // 2, turn)
    index, first, start, stop, tiles = find_groups(work, plan, tile)

    # As Tiling.coord. All row tiles of a group are alike: others fall out of step, and B comes anew for each.
    M = gl.maximum(stop - start, 1)
    m_tiles, is_plain = row_tiles_of(plan, M)
    n_tiles = gl.cdiv(work.schedule.N, tiling.BLOCK_N)
    band = (tile - first) // (tiling.GROUP_M * n_tiles)
    band_tiles = gl.maximum(gl.minimum(m_tiles - band * tiling.GROUP_M, tiling.GROUP_M), 1)
    within = (tile - first) % (tiling.GROUP_M * n_tiles)
    rows = gl.where(is_plain, PLAIN_ROWS, gl.cdiv(M, ROW_STEP * m_tiles) * ROW_STEP)
    m = (band * tiling.GROUP_M + within % band_tiles) * rows
    upper = gl.cdiv(rows, 2 * ROW_STEP) * ROW_STEP
    is_lower = is_cut & ((turn - plan.cut_from) % 2 == 1)
    m = gl.where(is_lower, m + upper, m)
    rows = gl.where(is_lower, rows - upper, gl.where(is_cut, upper, rows))
    stop = gl.minimum(stop, start + m + rows)

    listed.index(0).store(ragged_row(start, stop, m))
    listed.index(1).store(stop)
    listed.index(2).store(within // band_tiles * tiling.BLOCK_N)
    # Half of a plain tile is a fitted one. Rows are a multiple of ROW_STEP, so the lowest bit is free.
    listed.index(3).store(index * 256 + rows + gl.where(is_plain & (turn < plan.cut_from), 1, 0))
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
    index, rows, is_plain = index_and_rows >> 8, index_and_rows & 254, index_and_rows & 1
    return Tile(work.schedule.base, index, m, stop, n, rows, is_plain, work.schedule.N)
