"""Scales in shared memory, beside the ring of k-tiles: what the scaled `hopper` kernels add to a slot.

The producer warp copies the scales of its k-tile by cp.async, a word a lane, and each lane arrives on the slot's full
barrier when its words are there. So scales may lie in any order, and consumers read them without a wait of their own.
Policies, one for each of SCALINGS in aot/spec/abi.py:

    BLOCKS                          whether each k-tile has scales
    LAST                            whether the tile has scales, which come with its last k-tile
    AHEAD                           whether scales are copied before their k-tile's slot is free: behind a k-tile they
                                    arrive late, which four stages do not hide
    CHUNK                           k-tiles whose scales are copied at once, if AHEAD
    SLOTS                           k-tiles whose scales are kept
    PITCH                           words from the scales of rows in a slot to those in the next
    STAGED                          whether large tiles are staged whole, for a warp that stores them: hopper/staged.py
    sources(work, group, m, n)      of the producer: where the scales of a tile lie
    copy(work, group, sources, i, k_tiles, slot)
                                    of the producer: those of k-tile `i` of a tile's `k_tiles`, or of a chunk from it on
    of_rows(work, slot, layout, ME) of a consumer: of consumer ME's rows in a slot
    of_columns(slot, layout, PART)  of a consumer: one for all columns of a part of the tile; where the tile has scales,
                                    which then is one part, one for each column
    of_group(work, group)           of a consumer: the scale of a group's tiles if all of them have one, read before
                                    their products: behind a tile's it would hold up the next tile's
    a, b                            the shared memory of scales of rows and of columns, which wide.py reads itself

Row and tensor scales are applied once a tile: by wide.py behind the last products' start, else to whole sums. A slot
with scales of rows and columns is kept until they are read.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ..records import scaled_descriptors
from .record import word
from .work import shared_address

BLOCK = gl.constexpr(128)  # of K and of N that a scale is for
LANE_WORDS = gl.constexpr(56)  # of scales of columns, from those of a thread to those of the next: copy_columns
CHUNK = gl.constexpr(4)  # k-tiles whose scales a producer warp copies at once
CHUNK_ROWS = gl.constexpr(32 // CHUNK)  # rows that its lanes copy at once
PART = gl.constexpr(128)  # columns of a tile whose sums are one tensor, at most: a block of B


@gluon.constexpr_function
def part_columns(block_n):
    """Columns of a part of a tile's sums. Tensors have powers of two, so a tile of 192 has three."""
    return min(PART, block_n & -block_n)


@gluon.constexpr_function
def power_of_two(count):
    """The least one that is not below."""
    return 1 << (count - 1).bit_length()


@gluon.jit
def of_rows(work, group, m, row):
    """Where the scales of rows of the tile lie: of the first k-tile. `m` is the tile's row in its group.

    Rows past the group's end, which are stored nowhere, take its last row's: no other memory is read.
    """
    row = gl.minimum(m + row, work.schedule.M(group) - 1)
    pointer = word(group.record + scaled_descriptors.scale_a).to(gl.pointer_type(gl.float32))
    return pointer + work.schedule.scale_offset(group, row)


@gluon.jit
def of_group(work, group):
    """Where the scales of the group's B lie. The rows behind the last group take its: they have no products."""
    index = gl.minimum(group.index, work.schedule.groups - 1).to(gl.int64)
    pointer = word(group.record + scaled_descriptors.scale_b).to(gl.pointer_type(gl.float32))
    return pointer + index * word(group.record + scaled_descriptors.scale_b_step)


@gluon.jit
def of_columns(work, group, index):
    """Where the scales `index` along N of the group's B lie."""
    return of_group(work, group) + index.to(gl.int64) * word(group.record + scaled_descriptors.scale_b_n)


@gluon.constexpr_function
def _copies(count, step_bytes):
    """The PTX of a lane's copies of 4 bytes, to destinations that are `step_bytes` apart.

    Operands: the first destination and the sources.
    """
    return " ".join(f"cp.async.ca.shared.global [$0+{i * step_bytes}], [${1 + i}], 4;" for i in range(count))


@gluon.jit
def lanes():
    """The threads of the producer, in a layout of one dimension."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    return gl.arange(0, 32 * gl.num_warps(), layout)


@gluon.jit
def copy_words(buffer, pointers):
    """cp.async of words to `buffer`, one behind the other. Fewer than there are lanes: several copy the same."""
    COUNT: gl.constexpr = pointers.shape[0]
    THREADS: gl.constexpr = 32 * gl.num_warps()
    place = shared_address(buffer) + lanes() % COUNT * 4
    if COUNT < THREADS:
        gl.inline_asm(_copies(1, 0), ("r", "l"), [place, pointers])
    else:
        gl.inline_asm(_copies(COUNT // THREADS, 4 * THREADS), ("r", "l"), [place, pointers])


@gluon.jit
def place_of_columns():
    """Where copy_columns puts the first word of a lane. Of a lane's number that other warps make too the compiler would
    work it out before the warps part, and spill."""
    lane = gl.inline_asm_elementwise("mov.u32 $0, %laneid;", "=r,r", [lanes()], dtype=gl.int32, is_pure=False, pack=1)
    return (lane % 8 // 2 * LANE_WORDS + lane // 8 * 2 + lane % 2) * 4


@gluon.jit
def copy_columns(buffer, place, pointers, COUNT: gl.constexpr):
    """As copy_words, of COUNT words a lane, for wide.py: what a thread reads, two of each 8 columns, lies together, and
    LANE_WORDS from what the next one reads. So it reads four at once, and no two threads in one bank."""
    gl.inline_asm(_copies(COUNT, 32), ("r", "l"), [shared_address(buffer) + place, pointers])


@gluon.jit
def words(COUNT: gl.constexpr):
    """Indices of words in the layout that `copy_words` takes."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    return gl.arange(0, COUNT, layout)


@gluon.jit
def read_words(buffer, index):
    """Words of `buffer`. For `load` the compiler would place a barrier of the consumer group before each k-tile."""
    address = shared_address(buffer) + index * 4
    return gl.inline_asm_elementwise(
        "ld.shared.b32 $0, [$1];", "=f,r", [address], dtype=gl.float32, is_pure=False, pack=1
    )


@gluon.jit
def read_rows(buffer, index):
    """As read_words, of the rows of wgmma's result: a thread has pairs of them, 8 rows apart, by one address."""
    address = shared_address(buffer) + index * 4
    return gl.inline_asm_elementwise(
        "ld.shared.b32 $0, [$2]; ld.shared.b32 $1, [$2+32];",
        "=f,=f,r,r",
        [address],
        dtype=gl.float32,
        is_pure=False,
        pack=2,
    )


@gluon.jit
def scale_slot(work, k_tile):
    """Where the scales of a k-tile lie. If they are copied AHEAD they have a CHUNK of slots more than the ring of
    k-tiles: the slots that the next ones go to held those of k-tiles whose products are done, as the last k-tile took
    its slot. Scales of columns have one more still: they are read when a k-tile's slot is free already, but not those
    of the one before.
    """
    return k_tile % work.scaling.SLOTS


@gluon.aggregate
class NoSources:
    none: gl.constexpr = 0


@gluon.aggregate
class TensorScales:
    """As TensorScaling: one for A and one for each group's B. Tiles are large: those of `hopper_ragged` are smaller."""

    SLOTS: gl.constexpr
    BLOCKS: gl.constexpr = False
    LAST: gl.constexpr = False
    AHEAD: gl.constexpr = False
    STAGED: gl.constexpr = True

    @gluon.jit
    def sources(self, work, group, m, n):
        return NoSources()

    @gluon.jit
    def copy(self, work, group, sources, i, k_tiles, slot):
        return sources

    @gluon.jit
    def of_group(self, work, group):
        return work.schedule.scale_a(group) * work.schedule.scale_b(group)


@gluon.aggregate
class BlockSources:
    """Where the scales of a k-tile lie, and how far it is to those of the next one."""

    a: gl.tensor  # of each row of the tile
    b: gl.tensor  # of each part of its columns
    a_step: gl.tensor
    b_step: gl.tensor


@gluon.jit
def blocks_of_parts(work, group, n, part):
    """The blocks of N that parts of a tile's columns lie in. The last columns may lie past N: the last block."""
    COLUMNS: gl.constexpr = part_columns(work.tiling.BLOCK_N)
    if COLUMNS < BLOCK:  # and a tile may start within a block
        block = (n + part * COLUMNS) // BLOCK
    else:
        block = n // BLOCK + part
    return gl.minimum(block, gl.cdiv(group.N, BLOCK) - 1)


@gluon.aggregate
class BlockScales:
    """A float32 for each 1x128 of A and 128x128 of each group's B, read where the k-tile is multiplied."""

    a: gl.shared_memory_descriptor  # [SLOTS, BLOCK_M]
    b: gl.shared_memory_descriptor  # [SLOTS, parts of BLOCK_N, or more]
    SLOTS: gl.constexpr
    BLOCKS: gl.constexpr = True
    LAST: gl.constexpr = False
    AHEAD: gl.constexpr = False
    STAGED: gl.constexpr = True

    @gluon.jit
    def sources(self, work, group, m, n):
        block = blocks_of_parts(work, group, n, words(self.b.shape[1]))
        return BlockSources(
            of_rows(work, group, m, words(self.a.shape[1])),
            of_columns(work, group, block),
            word(group.record + scaled_descriptors.scale_a_k),
            word(group.record + scaled_descriptors.scale_b_k),
        )

    @gluon.jit
    def copy(self, work, group, sources, i, k_tiles, slot):
        copy_words(self.a.index(slot), sources.a)
        copy_words(self.b.index(slot), sources.b)
        a_step, b_step = sources.a_step, sources.b_step
        return BlockSources(sources.a + a_step, sources.b + b_step, a_step, b_step)

    @gluon.jit
    def of_rows(self, work, slot, layout: gl.constexpr, ME: gl.constexpr):
        index = ME * work.tiling.CONSUMER_M + gl.arange(0, work.tiling.CONSUMER_M, layout)
        if work.tiling.SWAP_AB:
            return read_words(self.a.index(slot), index)
        else:
            return read_rows(self.a.index(slot), index)

    @gluon.jit
    def of_columns(self, slot, layout: gl.constexpr, INDEX: gl.constexpr):
        return read_words(self.b.index(slot), gl.to_tensor(INDEX))

    @gluon.jit
    def of_group(self, work, group):
        return None


@gluon.aggregate
class ChunkSources:
    """Where the scales lie that a lane copies, and how far it is to the next ones. Addresses and steps are bytes."""

    a: gl.tensor  # of the lane's first row
    b: gl.tensor  # of its part of the columns
    a_row: gl.tensor  # from one of its rows to the next
    a_step: gl.tensor  # to the next chunk
    b_step: gl.tensor
    rows: gl.tensor  # of the tile, from the lane's first one to the end of the group


@gluon.constexpr_function
def _chunk_copies(block_m, step, parts):
    """The PTX of a lane's copies of a chunk, each `step`th of the tile's rows. Operands: the destination of its first
    row, its source, how far it is to the next one, how many rows there are; destination and source of its part of the
    columns, and the number of that part; how many k-tiles are left from the lane's on."""
    lines = ["setp.gt.s32 some, $7, 0; mov.b64 source, $1;"]
    for row in range(0, block_m, step):
        lines += [
            f"setp.gt.and.s32 copies, $3, {row}, some; @copies cp.async.ca.shared.global [$0+{4 * row}], [source], 4;",
            "add.s64 source, source, $2;",
        ]
    lines.append(f"setp.lt.and.s32 copies, $6, {parts}, some; @copies cp.async.ca.shared.global [$4], [$5], 4;")
    return "{ .reg .pred some, copies; .reg .b64 source; " + " ".join(lines) + " }"


@gluon.aggregate
class ChunkedBlockScales:
    """As BlockScales, copied AHEAD, for wide.py: a lane copies one k-tile of a chunk, of each eighth row.

    Where scales of a row lie one behind the other, the lanes of a row then ask for one sector of memory. K-tile by
    k-tile each lane asks for one of its own: four times as much for L1 to look up, which was 4 to 6 % of the time of
    128 groups of some 256 rows. Scales of rows past the group's end, which are stored nowhere, are not copied.
    """

    a: gl.shared_memory_descriptor  # [SLOTS * PITCH / CHUNK_ROWS, CHUNK_ROWS]
    b: gl.shared_memory_descriptor  # [SLOTS, parts of BLOCK_N, or more]
    SLOTS: gl.constexpr
    PITCH: gl.constexpr
    CHUNK: gl.constexpr = CHUNK
    BLOCKS: gl.constexpr = True
    LAST: gl.constexpr = False
    AHEAD: gl.constexpr = True
    STAGED: gl.constexpr = True

    @gluon.jit
    def sources(self, work, group, m, n):
        lane = lanes()
        k_tile, row = (lane % CHUNK).to(gl.int64), lane // CHUNK
        a_k, b_k = (
            word(group.record + scaled_descriptors.scale_a_k) * 4,
            word(group.record + scaled_descriptors.scale_b_k) * 4,
        )
        a = word(group.record + scaled_descriptors.scale_a) + work.schedule.scale_offset(group, m + row) * 4
        b = of_columns(work, group, blocks_of_parts(work, group, n, row)).to(gl.int64)
        return ChunkSources(
            a + k_tile * a_k,
            b + k_tile * b_k,
            word(group.record + scaled_descriptors.scale_a_row) * (4 * CHUNK_ROWS),
            a_k * CHUNK,
            b_k * CHUNK,
            work.schedule.M(group) - m - row,
        )

    @gluon.jit
    def copy(self, work, group, sources, i, k_tiles, slot):
        COPIES: gl.constexpr = _chunk_copies(work.tiling.BLOCK_M, CHUNK_ROWS, self.b.shape[1])
        lane = lanes()
        k_tile, row = lane % CHUNK, lane // CHUNK
        slot = (slot + k_tile) % self.SLOTS
        gl.inline_asm(
            COPIES,
            "r,l,l,r,r,l,r,r",
            [
                shared_address(self.a) + (slot * self.PITCH + row) * 4,
                sources.a,
                sources.a_row,
                sources.rows,
                shared_address(self.b) + (slot * self.b.shape[1] + row) * 4,
                sources.b,
                row,
                k_tiles - i - k_tile,
            ],
        )
        a_row, a_step, b_step = sources.a_row, sources.a_step, sources.b_step
        return ChunkSources(sources.a + a_step, sources.b + b_step, a_row, a_step, b_step, sources.rows)

    @gluon.jit
    def of_group(self, work, group):
        return None


@gluon.aggregate
class TileSources:
    """The tile whose scales come with its last k-tile."""

    m: gl.tensor
    n: gl.tensor


@gluon.constexpr_function
def _tile_copies(block_m, block_n):
    """The PTX of a warp's copies of a tile's scales, each 32nd row and column by one lane. Operands: the destination of
    the first row, its source, bytes to that of the next row, the last row that is copied; the same of columns."""
    lines = []
    for first, block in ((0, block_m), (4, block_n)):
        place, source, step, last = (f"${first + i}" for i in range(4))
        lines.append(f"mov.u32 lane, %laneid; and.b32 lane, lane, {min(block, 32) - 1};")
        lines.append(f"shl.b32 place, lane, 2; add.u32 place, place, {place};")
        for i in range(0, block, 32):
            lines += [
                f"add.s32 index, lane, {i}; min.s32 index, index, {last}; cvt.s64.s32 offset, index;",
                f"mad.lo.s64 offset, offset, {step}, {source};",
                f"cp.async.ca.shared.global [place+{4 * i}], [offset], 4;",
            ]
    return "{ .reg .b32 lane, place, index; .reg .b64 offset; " + " ".join(lines) + " }"


@gluon.aggregate
class RowScales:
    """A float32 for each row of A, and for each column of each group's B. Those of a tile come with its last k-tile."""

    a: gl.shared_memory_descriptor  # [STAGES, BLOCK_M]
    b: gl.shared_memory_descriptor  # [STAGES, BLOCK_N or more]
    SLOTS: gl.constexpr
    PITCH: gl.constexpr
    BLOCKS: gl.constexpr = False
    LAST: gl.constexpr = True
    AHEAD: gl.constexpr = False
    STAGED: gl.constexpr = True

    @gluon.jit
    def sources(self, work, group, m, n):
        return TileSources(m, n)

    @gluon.jit
    def copy(self, work, group, sources, i, k_tiles, slot):
        if i + 1 == k_tiles:  # rows and columns that are stored nowhere take the last one's: no other memory is read
            COPIES: gl.constexpr = _tile_copies(work.tiling.BLOCK_M, work.tiling.BLOCK_N)
            first = work.schedule.scale_offset(group, sources.m)
            gl.inline_asm(
                COPIES,
                "r,l,l,r,r,l,l,r",
                [
                    self.a.index(slot),
                    word(group.record + scaled_descriptors.scale_a) + first * 4,
                    word(group.record + scaled_descriptors.scale_a_row) * 4,
                    work.schedule.M(group) - sources.m - 1,
                    self.b.index(slot),
                    of_columns(work, group, sources.n).to(gl.int64),
                    word(group.record + scaled_descriptors.scale_b_n) * 4,
                    group.N - sources.n - 1,
                ],
            )
        return sources

    @gluon.jit
    def of_rows(self, work, slot, layout: gl.constexpr, ME: gl.constexpr):
        ROWS: gl.constexpr = work.tiling.CONSUMER_M
        return self.a.index(slot).slice(ME * ROWS, ROWS, 0).load(layout)

    @gluon.jit
    def of_columns(self, slot, layout: gl.constexpr, INDEX: gl.constexpr):
        return self.b.index(slot).load(layout)

    @gluon.jit
    def of_group(self, work, group):
        return None


@gluon.jit
def make_scale_ring(SCALING: gl.constexpr, tiling):
    """The policy of a scale mode, with its shared memory."""
    FLAT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    if SCALING == "tensor":
        return TensorScales(tiling.STAGES)
    else:
        gl.static_assert(SCALING == "row" or SCALING == "block", "hopper/scale_ring.py has no such scale mode")
        COLUMNS: gl.constexpr = part_columns(tiling.BLOCK_N)
        B_WORDS: gl.constexpr = power_of_two(tiling.BLOCK_N if SCALING == "row" else tiling.BLOCK_N // COLUMNS)
        AHEAD: gl.constexpr = SCALING == "block" and tiling.BLOCK_N > PART
        SLOTS: gl.constexpr = power_of_two(tiling.STAGES + CHUNK) if AHEAD else tiling.STAGES
        b = gl.allocate_shared_memory(gl.float32, [SLOTS, B_WORDS], FLAT)
        if AHEAD:
            PITCH: gl.constexpr = tiling.BLOCK_M + CHUNK_ROWS  # no two lanes of a copy write to one bank
            a = gl.allocate_shared_memory(gl.float32, [SLOTS * PITCH // CHUNK_ROWS, CHUNK_ROWS], FLAT)
            return ChunkedBlockScales(a, b, SLOTS, PITCH)
        else:
            a = gl.allocate_shared_memory(gl.float32, [SLOTS, tiling.BLOCK_M], FLAT)
            if SCALING == "row":
                return RowScales(a, b, SLOTS, tiling.BLOCK_M)
            else:
                return BlockScales(a, b, SLOTS)
