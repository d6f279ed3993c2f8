"""The producer of a kernel of ragged K that gathers: rows of A^T or of B by an index, by cp.async, beside TMA's loads
of the other operand.

As hopper/gather.py, but along K: each k-tile has rows of its own. To need few registers, a thread keeps one index of a
k-tile and no offset: a warp copies 16 rows, its lanes have loaded their indices a k-tile ahead, and each copy gets its
row from the lane that has it.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ..records import gather_k_descriptors
from .gather import GATHER_WARPS, from_lane_0, load_boxes, wait_together
from .record import word_now
from .schedules.ragged_m import LAST_ROW, ragged_row
from .work import arrive_when_copied, shared_address, tile_coord

# Consumers that defer their epilogues spill if a gathering thread has more.
GATHER_K_REGISTERS = gl.constexpr(40)
_NO_ROW = gl.constexpr(0xFFFFFFFF)
_CHUNK_LANES = gl.constexpr(8)  # that copy 16 bytes each of the 128 bytes of a box's row


@gluon.constexpr_function
def _copies(rows, step_bytes, boxes, box_bytes):
    """The PTX of a warp's copies of a k-tile: of every so many rows, and of all boxes that lie beside each other.

    Operands: the first destination, the address of this lane's column in row 0, how many bytes from there on a row has,
    and the offset in 16 bytes of this lane's row. Copy i of eight lanes is of the row of the i-th of them. A row that
    is not to be read is filled with zeros. Columns past a row are left as they are: they become outputs that are not
    stored.
    """
    lines = [
        f".reg .pred zeros, inside<{boxes}>; .reg .b64 source; .reg .b32 offset;",
        *(f"setp.gt.s32 inside{box}, $2, {box * 128};" for box in range(boxes)),
    ]
    for i in range(rows):
        lines += [
            f"shfl.sync.idx.b32 offset, $3, {i}, 0x181f, 0xffffffff;",
            f"setp.eq.u32 zeros, offset, {_NO_ROW.value}; mad.wide.u32 source, offset, 16, $1;",
            *(
                f"@inside{box} cp.async.cg.shared.global [$0+{i * step_bytes + box * box_bytes}], "
                f"[source+{box * 128}], 16, zeros;"
                for box in range(boxes)
            ),
        ]
    return "{ " + " ".join(lines) + " }"


@gluon.constexpr_function
def _boxes(columns, box, block_k):
    """As of hopper/gather.py: those beside each other."""
    return [(i * box, 0, i * block_k * 128) for i in range(columns // box)]


@gluon.jit
def load_index_words(first, bytes, place, count):
    """The low and the high word of the index of `bytes` bytes, `place` behind the `first`. From `count` on they are no
    row's."""
    return gl.inline_asm_elementwise(
        "{ .reg .pred inside, wide; .reg .b64 address; "
        "setp.lt.s32 inside, $4, $5; setp.eq.and.s32 wide, $3, 8, inside; mad.wide.u32 address, $4, $3, $2; "
        "mov.b32 $0, -1; @inside ld.global.b32 $0, [address]; "
        "mov.b32 $1, 0; @wide ld.global.b32 $1, [address+4]; }",
        "=&r,=&r,l,r,r,r",
        [first, bytes, place, count],
        dtype=(gl.int32, gl.int32),
        is_pure=False,
        pack=1,
    )


@gluon.jit
def offsets_of(low, high, rows, pitch):
    """Where the rows with these indices begin, in 16 bytes, which csrc has seen 32 bits hold; _NO_ROW for no row."""
    row = low.to(gl.uint32, bitcast=True)
    return gl.where((high == 0) & (row < rows), row * pitch, _NO_ROW)


@gluon.jit
def load_the_other(work, group, m, n, k, slot, warp, turn):
    """TMA's share of a k-tile, by the warp whose turn it is."""
    tiling = work.tiling
    BITS: gl.constexpr = tiling.DTYPE.primitive_bitwidth
    COLUMNS: gl.constexpr = tiling.BLOCK_M if work.schedule.GATHERS_B else tiling.BLOCK_N
    BOXES: gl.constexpr = _boxes(COLUMNS, 1024 // BITS, tiling.BLOCK_K)
    if work.schedule.GATHERS_B:
        descriptor, column, ring = group.record, m, work.a_ring
    else:
        descriptor, column, ring = group.record + gather_k_descriptors.b, n, work.b_ring
    barrier, row = work.full.index(slot), ragged_row(group.start, group.stop, k)
    gl.inline_asm(
        load_boxes(BOXES, 4, COLUMNS * tiling.BLOCK_K * BITS // 8, False),
        "r,r,r,r,l,r,r,r,r",
        [warp, turn, barrier, ring.index(slot), descriptor, column, row, gl.to_tensor(LAST_ROW), group.stop],
    )


@gluon.jit
def gather_k_tile(work, slot, first_place, source, left, offsets):
    tiling = work.tiling
    BOX: gl.constexpr = 1024 // tiling.DTYPE.primitive_bitwidth
    COLUMNS: gl.constexpr = tiling.BLOCK_N if work.schedule.GATHERS_B else tiling.BLOCK_M
    ROWS: gl.constexpr = 4 * gl.num_warps()  # at a time
    if work.schedule.GATHERS_B:
        ring = work.b_ring
    else:
        ring = work.a_ring
    gl.inline_asm(
        _copies(tiling.BLOCK_K // ROWS, ROWS * 128, COLUMNS // BOX, tiling.BLOCK_K * 128),
        ("r", "l", "r", "r"),
        [shared_address(ring.index(slot)) + first_place, source, left, offsets],
    )
    arrive_when_copied(work.full.index(slot))


@gluon.jit
def gather_k(work):
    tiling = work.tiling
    BITS: gl.constexpr = tiling.DTYPE.primitive_bitwidth
    STAGES: gl.constexpr = tiling.STAGES
    ROWS: gl.constexpr = 4 * gl.num_warps()
    gl.static_assert(tiling.BLOCK_K == 4 * ROWS, "a lane loads the index of one row: 16 rows a warp")
    threads: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    thread = gl.arange(0, 32 * gl.num_warps(), threads)
    warp = from_lane_0(thread // 32)
    first_row, chunk = thread // _CHUNK_LANES, thread % _CHUNK_LANES
    first_place = first_row * 128 + (chunk ^ (first_row % 8)) * 16
    first_byte = chunk * 16
    row = first_row + thread % 4 * ROWS  # whose index this lane loads
    base = work.schedule.base
    tile = gl.program_id(0)
    k_tile = gl.to_tensor(0).to(gl.uint32)
    group = work.schedule.first(tile)
    while tile < group.end:
        k_tiles = tiling.k_tiles(group.K)
        bytes = word_now(base + gather_k_descriptors.index_bytes).to(gl.int32)
        index = word_now(base + gather_k_descriptors.index) + (group.start + row).to(gl.int64) * bytes
        count = group.K - row
        low, high = load_index_words(index, bytes, 0, count)
        while tile < group.end:
            m, n = tile_coord(work, group, tile)
            if work.schedule.GATHERS_B:
                column, columns = n, group.N
            else:
                column, columns = m, work.schedule.M(group)
            first_column = word_now(base + gather_k_descriptors.gathered)
            source = first_column + column.to(gl.int64) * (BITS // 8) + first_byte
            left = (columns - column) * (BITS // 8) - first_byte
            rows = word_now(base + gather_k_descriptors.gathered_rows).to(gl.uint32)
            pitch = word_now(base + gather_k_descriptors.gathered_row).to(gl.uint32) // (128 // BITS)
            for i in range(0, k_tiles):
                offsets = offsets_of(low, high, rows, pitch)
                # All tiles of a group have the same rows: behind its last k-tile comes the first one.
                ahead = gl.where(i + 1 < k_tiles, i + 1, 0) * tiling.BLOCK_K
                low, high = load_index_words(index, bytes, ahead, count)
                slot = (k_tile % STAGES).to(gl.int32)
                wait_together(work.empty.index(slot), (k_tile // STAGES & 1) ^ 1)
                gather_k_tile(work, slot, first_place, source, left, offsets)
                load_the_other(work, group, m, n, i * tiling.BLOCK_K, slot, warp, k_tile % GATHER_WARPS)
                k_tile += 1
            tile += gl.num_programs(0)
        group = work.schedule.next(group, tile)
