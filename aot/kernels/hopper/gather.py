"""The producer of a gathering kernel: rows of A by an index, by cp.async, beside TMA's loads of B.

TMA of sm_90 moves boxes of neighbouring rows only. Each thread copies 16 bytes of every 4 * GATHER_WARPS-th row to the
place where TMA's swizzle would have put them: 16-byte chunk c of row r lies in chunk c ^ (r % 8) of its 128 bytes. A
row that is not to be read (past the group, or an index out of range) is filled with zeros, and so is what lies past K.

The warps load B in turns, a k-tile each, and meet nowhere but at the ring's barriers. A load by TMA takes two dozen
instructions, and B's k-tile can be four loads: more instructions than a warp's own copies. The copies of A come first,
as B is more often in L2.

ptxas keeps in uniform registers what all lanes of a warp have, where it knows that they go together. It does so behind
a branch by a vote, and by a number out of a shuffle. Otherwise a loop over k-tiles has a tenth to a quarter more
instructions, and in hopper/gather_k.py gathering warps spill.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ..records import gated_descriptors, grouped_descriptors
from .record import word_now
from .work import arrive_when_copied, shared_address, tile_coord

GATHER_WARPS = gl.constexpr(4)
GATHER_REGISTERS = gl.constexpr(72)
GATHERING_CONSUMER_REGISTERS = gl.constexpr(216)
_NO_ROW = gl.constexpr(0xFFFFFFFF)
_CHUNKS = gl.constexpr(8)  # of 16 bytes in the 128 bytes of a box's row


@gluon.constexpr_function
def _sources(count):
    """The PTX of where a thread's copies come from. Operands: the results, the address, and the offsets in 16 bytes of
    the rows."""
    return " ".join(f"mad.wide.u32 ${i}, ${count + 1 + i}, 16, ${count};" for i in range(count))


@gluon.constexpr_function
def _copies(step_bytes, count, ahead):
    """The PTX of a thread's copies, to destinations that are `step_bytes` apart, of rows that begin at these offsets in
    16 bytes. One from `limit` on is not read: zeros. Operands: the first destination, if the addresses were made ahead
    the limit, the offsets and the addresses, and else the address of row 0, the limit and the offsets."""
    lines = []
    for i in range(count):
        limit, offset, source = ("$1", f"${2 + i}", f"${2 + count + i}") if ahead else ("$2", f"${3 + i}", "source")
        lines.append(f"setp.ge.u32 zeros, {offset}, {limit};")
        if not ahead:
            lines.append(f"mad.wide.u32 source, {offset}, 16, $1;")
        lines.append(f"cp.async.cg.shared.global [$0+{i * step_bytes}], [{source}], 16, zeros;")
    return "{ .reg .pred zeros; .reg .b64 source; " + " ".join(lines) + " }"


@gluon.constexpr_function
def _boxes_of_b(columns_contiguous, block_n, block_k, halves, box):
    """(offset of the contiguous coordinate, half, place in bytes) of each box that B's part of a k-tile comes in.
    `box`: elements of 128 bytes."""
    columns, boxes = block_n // (2 if halves else 1), []
    for half in range(2 if halves else 1):
        if columns_contiguous:
            boxes += [(i * box, half, (half * columns // box + i) * block_k * 128) for i in range(columns // box)]
        else:
            boxes += [(i * box, half, (i * block_n + half * columns) * 128) for i in range(block_k // box)]
    return boxes


@gluon.constexpr_function
def load_boxes(boxes, rank, bytes, has_policy):
    """The PTX of loads by one warp, while others pass by. Operands: this warp, the one whose turn it is, the barrier,
    the buffer, the descriptor, the policy if any, and the coordinates, of which the third is that of half 0."""
    coordinates = [f"${5 + has_policy + i}" for i in range(rank)]
    hint, policy = (".L2::cache_hint", ", $5") if has_policy else ("", "")
    copy = f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes{hint}"

    def load(offset, half, place):
        third = "other" if half else coordinates[2]
        at = ", ".join(["x", coordinates[1], third, *coordinates[3:]])
        return (
            f"add.s32 x, {coordinates[0]}, {offset}; add.u32 place, $3, {place}; "
            f"@elected {copy} [place], [$4, {{{at}}}], [$2]{policy}; "
        )

    return (
        "{ .reg .pred passes, elected; .reg .b32 x, other, place; setp.ne.u32 passes, $0, $1; @passes bra behind; "
        "elect.sync _|elected, 0xffffffff; "
        f"@elected mbarrier.arrive.expect_tx.shared::cta.b64 _, [$2], {bytes}; "
        + (f"xor.b32 other, {coordinates[2]}, 1; " if any(half for _, half, _ in boxes) else "")
        + "".join(load(*box) for box in boxes)
        + "behind: mov.b32 x, 0; }"
    )


@gluon.jit
def wait_together(barrier, parity):
    """As mbarrier.wait, before which the compiler has the warps meet, for a warp alone."""
    gl.inline_asm(
        "{ .reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [$0], $1; "
        "vote.sync.all.pred done, done, 0xffffffff; @!done bra again; }",
        "r,r",
        [barrier, parity],
    )


@gluon.jit
def from_lane_0(value):
    """A value that all lanes of a warp have, so that ptxas knows it."""
    return gl.inline_asm_elementwise(
        "shfl.sync.idx.b32 $0, $1, 0, 31, 0xffffffff;", "=r,r", [value], dtype=gl.int32, is_pure=True, pack=1
    )


@gluon.jit
def load_index(address, bytes, place, inside):
    """Elements of an int32 or int64 array, -1 where not `inside`."""
    if bytes == 8:
        index = gl.load(address.to(gl.pointer_type(gl.int64)) + place, mask=inside, other=-1)
    else:
        index = gl.load(address.to(gl.pointer_type(gl.int32)) + place, mask=inside, other=-1).to(gl.int64)
    return index


@gluon.aggregate
class Lanes:
    """What a thread copies: 16 bytes of a row of each four, in `row`'s layout."""

    warp: gl.tensor  # of the gathering ones
    row: gl.tensor  # of a tile
    first_place: gl.tensor  # in the box, in bytes
    first_byte: gl.tensor  # of the row


@gluon.jit
def gathering_lanes(work):
    rows: gl.constexpr = gl.SliceLayout(1, gl.BlockedLayout([1, 1], [4, _CHUNKS], [gl.num_warps(), 1], [1, 0]))
    threads: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    thread = gl.arange(0, 32 * gl.num_warps(), threads)
    first_row, chunk = thread // _CHUNKS, thread % _CHUNKS
    first_place = first_row * 128 + (chunk ^ (first_row % 8)) * 16
    return Lanes(from_lane_0(thread // 32), gl.arange(0, work.tiling.BLOCK_M, rows), first_place, chunk * 16)


@gluon.jit
def load_b(work, group, lanes, n, k, k_tile):
    """B's part of a k-tile, by the warp whose turn it is."""
    tiling = work.tiling
    slot, turn = k_tile % tiling.STAGES, k_tile % GATHER_WARPS
    HALVES: gl.constexpr = work.epilogue.HALVES
    COLUMNS_CONTIGUOUS: gl.constexpr = tiling.LAYOUT[1] == "n"
    BITS: gl.constexpr = tiling.DTYPE.primitive_bitwidth
    BOXES: gl.constexpr = _boxes_of_b(COLUMNS_CONTIGUOUS, tiling.BLOCK_N, tiling.BLOCK_K, HALVES, 1024 // BITS)
    BYTES: gl.constexpr = tiling.BLOCK_N * tiling.BLOCK_K * BITS // 8
    LOADS: gl.constexpr = load_boxes(BOXES, 4 if HALVES else 3, BYTES, True)
    barrier, buffer = work.full.index(slot), work.b_ring.index(slot * tiling.B_PANELS)
    descriptor, policy = group.record + grouped_descriptors.b, work.schedule.policy_of_b()
    column = n // 2 if HALVES else n
    x, y = (column, k) if COLUMNS_CONTIGUOUS else (k, column)
    load = (lanes.warp, turn, barrier, buffer, descriptor, policy, x, y)
    if HALVES:
        gl.inline_asm(LOADS, "r,r,r,r,l,l,r,r,r,r", load + (work.schedule.gate_of_b(group), group.index))  # noqa: RUF005
    else:
        gl.inline_asm(LOADS, "r,r,r,r,l,l,r,r,r", load + (group.index,))  # noqa: RUF005


@gluon.jit
def rows_of_tile(work, group, m, row):
    """(rows of A by the index, whether they are there) of rows `row` of the tile at `m`.

    The record is read anew for each tile: kept in registers it would make others spill.
    """
    base = work.schedule.base
    inside = m + row < group.stop - group.start
    index = word_now(base + gated_descriptors.index)
    index_bytes = word_now(base + gated_descriptors.index_bytes).to(gl.int32)
    wanted = load_index(index, index_bytes, (group.start + m).to(gl.int64) + row, inside)
    return wanted, (wanted >= 0) & (wanted < word_now(base + gated_descriptors.a_rows))


@gluon.aggregate
class Copies:
    """What a thread copies next of its rows of A."""

    offsets: gl.tensor  # of the rows, in 16 bytes, which csrc has seen 32 bits hold
    source: gl.tensor  # the address of its 16 bytes in row 0
    left: gl.tensor  # bytes of K from there on


@gluon.jit
def copies_of_tile(work, group, lanes, m):
    """Of a tile's first k-tile."""
    BYTES: gl.constexpr = work.tiling.DTYPE.primitive_bitwidth // 8
    base = work.schedule.base
    wanted, exists = rows_of_tile(work, group, m, lanes.row)
    pitch = word_now(base + gated_descriptors.a_row) * BYTES // 16
    offsets = gl.where(exists, wanted * pitch, _NO_ROW).to(gl.uint32)
    source = word_now(base + gated_descriptors.a_address) + lanes.first_byte
    return Copies(offsets, source, group.K * BYTES - lanes.first_byte)


@gluon.jit
def sources_of(work, copies):
    """The addresses of a k-tile's copies."""
    REPEATS: gl.constexpr = work.tiling.BLOCK_M // (4 * gl.num_warps())
    TYPE: gl.constexpr = copies.offsets.to(gl.int64).type
    return gl.inline_asm(_sources(REPEATS), ("=l", "l", "r"), [copies.source, copies.offsets], TYPE)


@gluon.jit
def copy_rows(work, lanes, copies, k_tile, AHEAD: gl.constexpr):
    """A's part of a k-tile, once its slot is empty. Returns the copies of the next one.

    AHEAD: whether the addresses are made before the slot is waited for. Behind that ptxas makes one after the other in
    the same register, and each copy waits until the one before it has read it.
    """
    tiling = work.tiling
    BOX: gl.constexpr = 1024 // tiling.DTYPE.primitive_bitwidth  # elements
    REPEATS: gl.constexpr = tiling.BLOCK_M // (4 * gl.num_warps())
    COPIES: gl.constexpr = _copies(gl.num_warps() * 4 * 128, REPEATS, AHEAD)
    source, left = copies.source, copies.left
    slot = k_tile % tiling.STAGES
    if AHEAD:
        sources = sources_of(work, copies)
    wait_together(work.empty.index(slot), (k_tile // tiling.STAGES & 1) ^ 1)
    for box in gl.static_range(tiling.BLOCK_K // BOX):
        address = shared_address(work.a_ring.index(slot)) + box * tiling.BLOCK_M * 128
        limit = gl.where(left > 0, _NO_ROW, 0).to(gl.uint32)
        if AHEAD:
            given = address + lanes.first_place, limit, copies.offsets, sources
            gl.inline_asm(COPIES, ("r", "r", "r", "l"), given)
            sources += 128
        else:
            given = address + lanes.first_place, source, limit, copies.offsets
            gl.inline_asm(COPIES, ("r", "l", "r", "r"), given)
            source += 128
        left -= 128
    arrive_when_copied(work.full.index(slot))
    if AHEAD:
        source += tiling.BLOCK_K // BOX * 128
    return Copies(copies.offsets, source, left)


@gluon.jit
def gather_tile(work, group, lanes, m, n, k_tile, k_tiles, AHEAD: gl.constexpr):
    """The k-tiles of a tile: rows of A by the index, and B. Returns the count of k-tiles behind them. AHEAD as in
    copy_rows."""
    tiling = work.tiling
    copies = copies_of_tile(work, group, lanes, m)
    for i in range(0, k_tiles):
        copies = copy_rows(work, lanes, copies, k_tile, AHEAD)
        load_b(work, group, lanes, n, i * tiling.BLOCK_K, k_tile)
        k_tile += 1
    return k_tile


@gluon.jit
def gather(work):
    lanes = gathering_lanes(work)
    tile = gl.program_id(0)
    k_tile = 0
    group = work.schedule.first(tile)
    while tile < group.end:
        k_tiles = work.tiling.k_tiles(group.K)
        while tile < group.end:
            m, n = tile_coord(work, group, tile)
            k_tile = gather_tile(work, group, lanes, m, n, k_tile, k_tiles, True)
            tile += gl.num_programs(0)
        group = work.schedule.next(group, tile)
