"""The producer of a kernel of ragged K that gathers: rows of A^T or of B by an index, by cp.async, beside TMA's loads
of the other operand.

As hopper/gather.py, but along K: each k-tile has rows of its own. To need few registers, a thread keeps one index of a
k-tile and no offset: a warp copies 16 rows, its lanes have loaded their indices a k-tile ahead, and each copy gets its
row from the lane that has it.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from ..records import gather_k_descriptors
from .gather import arrive_when_copied, shared_address, word_now
from .schedules.ragged_m import LAST_ROW, ragged_row
from .work import tile_coord

# Consumers that defer their epilogues spill if a gathering thread has more.
GATHER_K_REGISTERS = gl.constexpr(40)
_NO_ROW = gl.constexpr(0xFFFFFFFF)
_CHUNK_LANES = gl.constexpr(8)  # that copy 16 bytes each of the 128 bytes of a box's row


@gluon.constexpr_function
def _copies(rows, step_bytes, boxes, box_bytes):
    """The PTX of a warp's copies of a k-tile: of every so many rows, and of all boxes that lie beside each other.

    Operands: the first destination, the address of this lane's column in row 0, how many bytes from there on a row has,
    and the offset in 16 bytes of this lane's row. Copy i is of the row of lane `laneid / 8 + 4 i`. A row that is not to
    be read is filled with zeros. Columns past a row are left as they are: they become outputs that are not stored.
    """
    lines = [
        f".reg .pred zeros, inside<{boxes}>; .reg .b64 source; .reg .b32 lane, offset;",
        "mov.u32 lane, %laneid; shr.u32 lane, lane, 3;",
        *(f"setp.gt.s32 inside{box}, $2, {box * 128};" for box in range(boxes)),
    ]
    for i in range(rows):
        lines += [
            "shfl.sync.idx.b32 offset, $3, lane, 31, 0xffffffff; add.u32 lane, lane, 4;",
            f"setp.eq.u32 zeros, offset, {_NO_ROW.value}; mad.wide.u32 source, offset, 16, $1;",
            *(
                f"@inside{box} cp.async.cg.shared.global [$0+{i * step_bytes + box * box_bytes}], "
                f"[source+{box * 128}], 16, zeros;"
                for box in range(boxes)
            ),
        ]
    return "{ " + " ".join(lines) + " }"


@gluon.jit
def load_index_words(work, group, k, row):
    """The low and the high word of the indices of the k-tile at `k`. Past the group's end they are no row's."""
    base = work.schedule.base
    inside = k + row < group.K
    bytes = word_now(base + gather_k_descriptors.index_bytes).to(gl.int32)
    place = (group.start + k + row).to(gl.int64) * (bytes // 4)
    low_word = word_now(base + gather_k_descriptors.index).to(gl.pointer_type(gl.int32)) + place
    low = gl.load(low_word, mask=inside, other=-1)
    return low, gl.load(low_word + 1, mask=inside & (bytes == 8), other=0)


@gluon.jit
def offsets_of(work, low, high):
    """Where the rows with these indices begin, in 16 bytes, which csrc has seen 32 bits hold; _NO_ROW for no row."""
    base = work.schedule.base
    row = low.to(gl.uint32, bitcast=True)
    exists = (high == 0) & (row < word_now(base + gather_k_descriptors.gathered_rows).to(gl.uint32))
    pitch = word_now(base + gather_k_descriptors.gathered_row) * (work.tiling.DTYPE.primitive_bitwidth // 8) // 16
    return gl.where(exists, row * pitch.to(gl.uint32), _NO_ROW)


@gluon.jit
def load_box(descriptor, x, y, w, barrier, buffer, offset, thread):
    """As load_4d of hopper/boxes.py, issued by the first of several warps: that of the `thread`s below 32.

    With the thread read from %tid.x in here instead, ptxas of CUDA 12.9 spills up to 104 bytes in the consumers.
    """
    gl.inline_asm(
        "{ .reg .pred elected; .reg .b32 destination; elect.sync _|elected, 0xffffffff; "
        "setp.lt.and.u32 elected, $8, 32, elected; add.u32 destination, $6, $7; "
        "@elected cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[destination], [$0, {$1, $2, $3, $4}], [$5]; }",
        "l,r,r,r,r,r,r,r,r",
        [descriptor, x, y, gl.to_tensor(LAST_ROW), w, barrier, buffer, offset, thread],
    )


@gluon.jit
def load_the_other(work, group, m, n, k, slot, thread):
    """TMA's share of a k-tile, as load_k_tile of hopper/load.py."""
    tiling = work.tiling
    barrier = work.full.index(slot)
    BITS: gl.constexpr = tiling.DTYPE.primitive_bitwidth
    BOX: gl.constexpr = 1024 // BITS
    COLUMNS: gl.constexpr = tiling.BLOCK_M if work.schedule.GATHERS_B else tiling.BLOCK_N
    if work.schedule.GATHERS_B:
        descriptor, first, ring = group.record, m, work.a_ring
    else:
        descriptor, first, ring = group.record + gather_k_descriptors.b, n, work.b_ring
    mbarrier.expect(barrier, COLUMNS * tiling.BLOCK_K * BITS // 8)
    row = ragged_row(group.start, group.stop, k)
    for i in gl.static_range(COLUMNS // BOX):
        offset = i * tiling.BLOCK_K * 128
        load_box(descriptor, first + i * BOX, row, group.stop, barrier, ring.index(slot), offset, thread)


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
    BYTES: gl.constexpr = tiling.DTYPE.primitive_bitwidth // 8
    STAGES: gl.constexpr = tiling.STAGES
    ROWS: gl.constexpr = 4 * gl.num_warps()
    gl.static_assert(tiling.BLOCK_K == 4 * ROWS, "a lane loads the index of one row: 16 rows a warp")
    threads: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    thread = gl.arange(0, 32 * gl.num_warps(), threads)
    first_row, chunk = thread // _CHUNK_LANES, thread % _CHUNK_LANES
    first_place = first_row * 128 + (chunk ^ (first_row % 8)) * 16
    first_byte = chunk * 16
    row = thread // 32 * 4 + thread % 4 + thread % 16 // 4 * ROWS  # whose index this lane loads

    tile = gl.program_id(0)
    k_tile = 0
    group = work.schedule.first(tile)
    while tile < group.end:
        k_tiles = tiling.k_tiles(group.K)
        low, high = load_index_words(work, group, 0, row)
        while tile < group.end:
            m, n = tile_coord(work, group, tile)
            if work.schedule.GATHERS_B:
                column, columns = n, group.N
            else:
                column, columns = m, work.schedule.M(group)
            first_column = word_now(work.schedule.base + gather_k_descriptors.gathered)
            source = first_column + column.to(gl.int64) * BYTES + first_byte
            left = (columns - column) * BYTES - first_byte
            for i in range(0, k_tiles):
                offsets = offsets_of(work, low, high)
                # All tiles of a group have the same rows: behind its last k-tile comes the first one.
                ahead = gl.where(i + 1 < k_tiles, i + 1, 0) * tiling.BLOCK_K
                low, high = load_index_words(work, group, ahead, row)
                slot = k_tile % STAGES
                mbarrier.wait(work.empty.index(slot), (k_tile // STAGES & 1) ^ 1)
                load_the_other(work, group, m, n, i * tiling.BLOCK_K, slot, thread)
                gather_k_tile(work, slot, first_place, source, left, offsets)
                k_tile += 1
            tile += gl.num_programs(0)
        group = work.schedule.next(group, tile)
