"""The pipeline of `hopper_scaled_gated`: promotion.py's, where a tile's left half is gate's columns and its right half
up's, and rows of A may come by an index, with their scales.

The two halves are the two parts of a tile, and each has a block of B's scales of its own. A row of a k-tile of e4m3 is
128 bytes: one box of TMA, or 8 copies of 16 bytes as in gather.py.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from ..records import gated_descriptors, gated_scaled_descriptors
from .gather import _CHUNKS, _NO_ROW, GATHER_WARPS, _copies, arrive_when_copied, load_index, shared_address, word_now
from .load import load_k_tile
from .pipeline import skip_k_tiles
from .promotion import add_k_tile, place_of, wait_full, zero_parts
from .record import word
from .scale_ring import copy_words, read_rows, read_words, words
from .scaling import BLOCK
from .work import tile_coord

_CONSUMER_REGISTERS, _PRODUCER_REGISTERS = gl.constexpr(224), gl.constexpr(56)
_GATHERED_CONSUMER_REGISTERS, _GATHER_REGISTERS = gl.constexpr(216), gl.constexpr(72)


@gluon.aggregate
class GatedSources:
    """Where the scales of a k-tile lie, and how far it is to those of the next one."""

    a: gl.tensor  # of each row of the tile
    b: gl.tensor  # of gate's columns and of up's
    a_step: gl.tensor
    b_step: gl.tensor


@gluon.jit
def sources_of_tile(work, group, rows, n):
    """Of the first k-tile of a tile whose rows are `rows` of A. `n` counts columns of gate and up alike."""
    record = group.record
    of_rows = word(record + gated_descriptors.scale_a).to(gl.pointer_type(gl.float32))
    of_rows += rows.to(gl.int64) * word(record + gated_scaled_descriptors.scale_a_row)
    index = gl.minimum(group.index, work.schedule.groups - 1).to(gl.int64)
    half = words(2).to(gl.int64) * word(record + gated_scaled_descriptors.scale_b_apart)
    of_columns = word(record + gated_descriptors.scale_b).to(gl.pointer_type(gl.float32))
    of_columns += index * word(record + gated_descriptors.scale_b_step) + half
    of_columns += (n // BLOCK).to(gl.int64) * word(record + gated_scaled_descriptors.scale_b_n)
    return GatedSources(
        of_rows,
        of_columns,
        word(record + gated_scaled_descriptors.scale_a_k),
        word(record + gated_scaled_descriptors.scale_b_k),
    )


@gluon.aggregate
class GatedBlockScales:
    """As BlockScales of scale_ring.py: a float32 for each 1x128 of A and 128x128 of B, gate's and up's."""

    a: gl.shared_memory_descriptor  # [STAGES, BLOCK_M]
    b: gl.shared_memory_descriptor  # [STAGES, 2]
    BLOCKS: gl.constexpr = True
    LAST: gl.constexpr = False

    @gluon.jit
    def copy(self, sources, slot):
        """cp.async of the scales of a k-tile. Returns the sources of the next one."""
        copy_words(self.a.index(slot), sources.a)
        copy_words(self.b.index(slot), sources.b)
        a_step, b_step = sources.a_step, sources.b_step
        return GatedSources(sources.a + a_step, sources.b + b_step, a_step, b_step)

    @gluon.jit
    def of_rows(self, work, slot, layout: gl.constexpr, ME: gl.constexpr):
        ROWS: gl.constexpr = work.tiling.CONSUMER_M
        return read_rows(self.a.index(slot), ME * ROWS + gl.arange(0, ROWS, layout))

    @gluon.jit
    def of_columns(self, slot, layout: gl.constexpr, INDEX: gl.constexpr):
        return read_words(self.b.index(slot), gl.to_tensor(INDEX))


@gluon.jit
def make_gated_scales(tiling):
    gl.static_assert(tiling.BLOCK_N == 2 * BLOCK and tiling.BLOCK_K == BLOCK, "a half of the tile is a block of scales")
    FLAT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    return GatedBlockScales(
        gl.allocate_shared_memory(gl.float32, [tiling.STAGES, tiling.BLOCK_M], FLAT),
        gl.allocate_shared_memory(gl.float32, [tiling.STAGES, 2], FLAT),
    )


@gluon.jit
def produce_gated(work):
    """TMA's loads and the scales. Rows past the group's end take the scale of its last one."""
    STAGES: gl.constexpr = work.tiling.STAGES
    tile = gl.program_id(0)
    k_tile = 0
    group = work.schedule.first(tile)
    while tile < group.end:
        k_tiles = work.tiling.k_tiles(group.K)
        while tile < group.end:
            m, n = tile_coord(work, group, tile)
            row = gl.minimum(m + words(work.tiling.BLOCK_M), group.stop - group.start - 1)
            sources = sources_of_tile(work, group, group.start + row, n // 2)
            for i in range(0, k_tiles):
                slot = k_tile % STAGES
                mbarrier.wait(work.empty.index(slot), (k_tile // STAGES & 1) ^ 1)
                load_k_tile(work, group, m, n, i * work.tiling.BLOCK_K, slot)
                sources = work.scaling.copy(sources, slot)
                arrive_when_copied(work.full.index(slot))
                k_tile += 1
            tile += gl.num_programs(0)
        group = work.schedule.next(group, tile)


@gluon.jit
def rows_of_tile(work, group, m, row):
    """(the rows of A by the index, whether they exist) of rows `row` of the tile at `m`."""
    base = work.schedule.base
    inside = m + row < group.stop - group.start
    index_bytes = word_now(base + gated_descriptors.index_bytes).to(gl.int32)
    index = word_now(base + gated_descriptors.index)
    wanted = load_index(index, index_bytes, (group.start + m).to(gl.int64) + row, inside)
    return wanted, (wanted >= 0) & (wanted < word_now(base + gated_descriptors.a_rows))


@gluon.jit
def gather_gated(work):
    """As `gather` of gather.py, with the scales. A row that is not to be read takes the scale of row 0."""
    tiling = work.tiling
    STAGES: gl.constexpr = tiling.STAGES
    rows: gl.constexpr = gl.SliceLayout(1, gl.BlockedLayout([1, 1], [4, _CHUNKS], [gl.num_warps(), 1], [1, 0]))
    REPEATS: gl.constexpr = tiling.BLOCK_M // (4 * gl.num_warps())
    threads: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    thread = gl.arange(0, 32 * gl.num_warps(), threads)
    first_row, chunk = thread // _CHUNKS, thread % _CHUNKS
    first_place = first_row * 128 + (chunk ^ (first_row % 8)) * 16
    first_byte = chunk * 16

    base = work.schedule.base
    tile = gl.program_id(0)
    k_tile = 0
    group = work.schedule.first(tile)
    while tile < group.end:
        k_tiles = tiling.k_tiles(group.K)
        while tile < group.end:
            m, n = tile_coord(work, group, tile)
            wanted, exists = rows_of_tile(work, group, m, gl.arange(0, tiling.BLOCK_M, rows))
            # Where rows begin in A, in 16 bytes, which csrc has seen 32 bits hold. In registers they would spill.
            pitch = word_now(base + gated_descriptors.a_row) // 16
            work.row_offsets.store(gl.where(exists, wanted * pitch, _NO_ROW).to(gl.uint32))
            wanted, exists = rows_of_tile(work, group, m, words(tiling.BLOCK_M))
            sources = sources_of_tile(work, group, gl.where(exists, wanted, 0), n // 2)
            source = word_now(base + gated_descriptors.a_address) + first_byte
            left = group.K - first_byte
            for i in range(0, k_tiles):
                slot = k_tile % STAGES
                mbarrier.wait(work.empty.index(slot), (k_tile // STAGES & 1) ^ 1)
                load_k_tile(work, group, m, n, i * tiling.BLOCK_K, slot)
                offsets = work.row_offsets.load(rows)
                limit = gl.where(left > 0, _NO_ROW, 0).to(gl.uint32)
                gl.inline_asm(
                    _copies(gl.num_warps() * 4 * 128, REPEATS),
                    ("r", "l", "r", "r"),
                    [shared_address(work.a_ring.index(slot)) + first_place, source, limit, offsets],
                )
                sources = work.scaling.copy(sources, slot)
                arrive_when_copied(work.full.index(slot))
                source += 128
                left -= 128
                k_tile += 1
            tile += gl.num_programs(0)
        group = work.schedule.next(group, tile)


@gluon.jit
def multiply_gated(work, k_tile, k_tiles, ME: gl.constexpr):
    """(sums of gate, sums of up)"""
    sums = zero_parts(work)
    place = place_of(work, k_tile)
    wait_full(work, place, gl.where(k_tiles > 0, 0, 1))
    for i in range(0, k_tiles):
        if work.schedule.GATHERS:
            fence_async_shared()  # cp.async wrote A, and wgmma reads through another proxy
        sums, place = add_k_tile(work, place, sums, i + 1 < k_tiles, ME)
    return sums


@gluon.jit
def consume_gated(work, ME: gl.constexpr):
    """As consume_scaled of promotion.py."""
    tiling = work.tiling
    gl.static_assert(not tiling.PINGPONG, "two consumer groups share a tile")
    tile = gl.program_id(0)
    k_tile = 0
    group = work.schedule.first(tile)
    while tile < group.end:
        k_tiles = tiling.k_tiles(group.K)
        while tile < group.end:
            m, n = tile_coord(work, group, tile)
            m += ME * tiling.CONSUMER_M
            if m < work.schedule.M(group):
                gate, up = multiply_gated(work, k_tile, k_tiles, ME)
                work.epilogue.store(work, group, gate, up, m, n // 2, ME)
            else:
                skip_k_tiles(work, k_tile, k_tiles)
            k_tile += k_tiles
            tile += gl.num_programs(0)
        group = work.schedule.next(group, tile)
    tma.store_wait(0)


@gluon.jit
def first_gated(work):
    consume_gated(work, 0)


@gluon.jit
def second_gated(work):
    consume_gated(work, 1)


@gluon.jit
def run_gated(work):
    """As `run` of hopper/pipeline.py."""
    if work.schedule.GATHERS:
        if work.tiling.CONSUMERS == 1:
            gl.warp_specialize([(first_gated, (work,)), (gather_gated, (work,))], [GATHER_WARPS], [_GATHER_REGISTERS])
        else:
            gl.warp_specialize(
                [(first_gated, (work,)), (second_gated, (work,)), (gather_gated, (work,))],
                [4, GATHER_WARPS],
                [_GATHERED_CONSUMER_REGISTERS, _GATHER_REGISTERS],
            )
    elif work.tiling.CONSUMERS == 1:
        gl.warp_specialize([(first_gated, (work,)), (produce_gated, (work,))], [1], [_PRODUCER_REGISTERS])
    else:
        gl.warp_specialize(
            [(first_gated, (work,)), (second_gated, (work,)), (produce_gated, (work,))],
            [4, 1],
            [_CONSUMER_REGISTERS, _PRODUCER_REGISTERS],
        )
