"""Which tile a CTA of `hopper` and `hopper_ragged` takes next, and where its group lies.

The warps of a CTA each walk the same tiles: tile `program_id`, then every `num_programs`-th. A list has its tile counts
in memory, a ragged matrix gives them by a scan over `offs`; both are searched with all lanes at once, from the group
that the warp is in.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ..records import list_descriptors

_LOOK = gl.constexpr(128)  # groups of a ragged matrix that are looked at together
LAST_ROW = gl.constexpr(1 << 30)


@gluon.jit
def word(address):
    return gl.inline_asm_elementwise("ld.b64 $0, [$1];", "=l,l", [address], dtype=gl.int64, is_pure=True, pack=1)


@gluon.jit
def parameters_address(BY_VALUE: gl.constexpr):
    """The first 64-byte boundary in the kernel's parameters: the hardware reads descriptors at no other."""
    return gl.inline_asm_elementwise(
        "{ .reg .b64 parameter; mov.b64 parameter, " + BY_VALUE + "_param_0; cvta.param.u64 $0, parameter; "
        "add.s64 $0, $0, $1; and.b64 $0, $0, -64; }",
        "=l,l",
        [gl.to_tensor(63).to(gl.int64)],
        dtype=gl.int64,
        is_pure=True,
        pack=1,
    )


@gluon.aggregate
class Look:
    """What the lanes know of _LOOK groups of a ragged matrix, from group `at` on."""

    at: gl.tensor
    tile: gl.tensor  # tiles and rows before them
    row: gl.tensor
    tile_ends: gl.tensor
    row_ends: gl.tensor


@gluon.aggregate
class Group:
    """A group with the tiles [first, end) and the rows [start, stop) of A and C; and where its descriptors lie."""

    index: gl.tensor
    first: gl.tensor
    end: gl.tensor
    start: gl.tensor
    stop: gl.tensor
    columns: gl.tensor
    depth: gl.tensor
    record: gl.tensor


@gluon.jit
def tile_position(work, group, tile):
    """Row and column of a tile in its group, going down RASTER row tiles before the next column (L2 reuse)."""
    row_tiles = gl.cdiv(group.stop - group.start, work.BLOCK_M)
    column_tiles = gl.cdiv(group.columns, work.BLOCK_N)
    index = tile - group.first
    band = index // (work.RASTER * column_tiles)
    band_rows = gl.minimum(row_tiles - band * work.RASTER, work.RASTER)
    within = index % (work.RASTER * column_tiles)
    return (band * work.RASTER + within % band_rows) * work.BLOCK_M, within // band_rows * work.BLOCK_N


@gluon.jit
def counted_row(start, stop, row):
    """Row `row` of the rows [start, stop) of a ragged matrix, as the descriptors of A and C count it: up to LAST_ROW.

    There ends the descriptors' second dimension, so that the hardware reads zeros past row `stop` and writes nothing.
    Two more dimensions lead from the row LAST_ROW - size + r that this returns to row stop - size + r of memory: `stop`
    counts rows, and LAST_ROW of the other, of 2^34 elements less a row each, take LAST_ROW rows away, for addresses are
    taken modulo 2^64.
    """
    return LAST_ROW - (stop - start) + row


@gluon.jit
def seek_listed(work, index, tile):
    """The group that owns `tile`, from group `index` on: a look at an end a lane at a time."""
    lanes: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    WIDTH: gl.constexpr = 32 * gl.num_warps()
    start = index
    searching = True
    while searching:
        at = start + gl.arange(0, WIDTH, lanes)
        ends = word(work.base + gl.minimum(at, work.groups - 1).to(gl.int64) * 8)
        behind = gl.sum(((ends <= tile) & (at < work.groups)).to(gl.int32), 0)
        index += behind
        start += WIDTH
        searching = (behind == WIDTH) & (start < work.groups)
    index = gl.minimum(index, work.groups - 1)
    end = word(work.base + index.to(gl.int64) * 8).to(gl.int32)
    before = word(work.base + gl.maximum(index - 1, 0).to(gl.int64) * 8).to(gl.int32)
    ends_bytes = (work.groups + 7) // 8 * 64
    record = work.base + ends_bytes.to(gl.int64) + index.to(gl.int64) * list_descriptors.size
    rows = word(record + list_descriptors.m).to(gl.int32)
    columns = word(record + list_descriptors.n).to(gl.int32)
    depth = word(record + list_descriptors.k).to(gl.int32)
    return Group(index, gl.where(index > 0, before, 0), end, gl.to_tensor(0), rows, columns, depth, record)


@gluon.jit
def _greater(x, y):
    return gl.maximum(x, y)


@gluon.jit
def _plus(x, y):
    return x + y


@gluon.jit
def look_ahead(work, at, tile, row):
    """Looks at the groups from `at` on, which have `tile` tiles and `row` rows before them.

    Garbage in `offs` is made harmless here and nowhere else: no end is below the one before it nor past the rows. The
    rows behind the last group are one more group.
    """
    lanes: gl.constexpr = gl.BlockedLayout([_LOOK // 32], [32], [gl.num_warps()], [0])
    group = at + gl.arange(0, _LOOK, lanes)
    offs = work.offs.to(gl.pointer_type(gl.int32))
    ends = gl.load(offs + group, mask=group < work.groups, other=2147483647)
    starts = gl.load(offs + group - 1, mask=(group > at) & (group <= work.groups), other=0)
    ends = gl.minimum(gl.maximum(gl.associative_scan(ends, 0, _greater), row), work.rows)
    starts = gl.minimum(gl.maximum(gl.associative_scan(starts, 0, _greater), row), work.rows)
    starts = gl.where(group > work.groups, work.rows, starts)
    tiles = gl.cdiv(ends - starts, work.BLOCK_M) * gl.cdiv(work.columns, work.BLOCK_N)
    return Look(at, tile, row, tile + gl.associative_scan(tiles, 0, _plus), ends)


@gluon.jit
def seek_ragged(work, look, tile):
    """The group that owns `tile`, and the look that shows it. Past the last tile, a group that ends before it."""
    last = gl.max(look.tile_ends, 0)
    while (last <= tile) & (look.at + _LOOK <= work.groups):
        look = look_ahead(work, look.at + _LOOK, last, gl.max(look.row_ends, 0))
        last = gl.max(look.tile_ends, 0)
    behind = look.tile_ends <= tile
    index = look.at + gl.sum(behind.to(gl.int32), 0)
    first = gl.max(gl.where(behind, look.tile_ends, look.tile), 0)
    start = gl.max(gl.where(behind, look.row_ends, look.row), 0)
    end = gl.min(gl.where(behind, last, look.tile_ends), 0)
    stop = gl.min(gl.where(behind, work.rows, look.row_ends), 0)
    depth = gl.where(index < work.groups, work.depth, 0)
    return Group(index, first, end, start, stop, work.columns, depth, work.base), look


@gluon.jit
def first_group(work, tile):
    """The group of a CTA's first tile, and the look at it."""
    if work.RAGGED:
        zero = gl.to_tensor(0)
        return seek_ragged(work, look_ahead(work, zero, zero, zero), tile)
    else:
        return seek_listed(work, gl.to_tensor(0), tile), 0


@gluon.jit
def next_group(work, group, look, tile):
    if work.RAGGED:
        return seek_ragged(work, look, tile)
    else:
        return seek_listed(work, group.index, tile), look
