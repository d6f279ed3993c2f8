"""Scales of blocks along a ragged K, 1x128 of A and of B^T, for the `hopper` kernels: a k-tile is a block of K.

They come with the k-tile, as those of scale_ring.py: the producer warp copies them beside the slot, in any order in
memory. A consumer thread has 2 rows of wgmma's result and 2 of each 8 columns: the sums of a k-tile are multiplied by
the scale of their row times that of their column as they are promoted. Tiles of 192 columns are multiplied by wide.py.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from ..records import scaled_k_descriptors
from .addends import with_addend
from .boxes import commit_stores
from .factor import load_factor
from .pipeline import CONSUMER_REGISTERS, operands, specialize, store_coord
from .promotion import (
    computed_here,
    is_full,
    part_count,
    place_of,
    produce_scaled,
    release_slot,
    wait_full,
    zero_part,
)
from .record import word, word_now
from .scale_ring import (
    BLOCK,
    PART,
    copy_columns,
    copy_words,
    place_of_columns,
    power_of_two,
    read_words,
    scale_slot,
    words,
)
from .store import fill, store_buffer, subtile
from .wide import multiply_wide
from .work import shared_address, tile_coord


@gluon.jit
def read_pairs(buffer, index):
    """Words of `buffer`, of which a thread reads two neighbours at once. See read_words of scale_ring.py."""
    address = shared_address(buffer) + index * 4
    return gl.inline_asm_elementwise(
        "ld.shared.v2.b32 {$0, $1}, [$2];", "=f,=f,r,r", [address], dtype=gl.float32, is_pure=False, pack=2
    )


@gluon.aggregate
class KSources:
    """Where the scales of a k-tile lie, and how far it is to those of the next one."""

    a: gl.tensor  # of each row of the tile
    b: gl.tensor  # of each column
    b_place: gl.tensor  # where those of this lane go in a slot, in bytes
    a_step: gl.tensor
    b_step: gl.tensor


@gluon.aggregate
class KBlockScales:
    """The calls of produce_scaled, and those of a consumer."""

    a: gl.shared_memory_descriptor  # [SLOTS, PITCH]
    b: gl.shared_memory_descriptor  # [SLOTS, BLOCK_N or more]
    c: gl.shared_memory_descriptor  # [2 or 3 for each consumer group, CONSUMER_M, columns of a subtile]
    AHEAD: gl.constexpr
    SLOTS: gl.constexpr
    PITCH: gl.constexpr
    CHUNK: gl.constexpr = 1
    BLOCKS: gl.constexpr = True
    LAST: gl.constexpr = False
    STAGED: gl.constexpr = False

    @gluon.jit
    def sources(self, work, group, m, n):
        """Rows and columns past the matrix, which are stored nowhere, take its last one's: no other memory is read."""
        a = word(group.record + scaled_k_descriptors.scale_a).to(gl.pointer_type(gl.float32))
        b = word(group.record + scaled_k_descriptors.scale_b).to(gl.pointer_type(gl.float32))
        row = gl.minimum(m + words(self.a.shape[1]), work.schedule.M(group) - 1).to(gl.int64)
        column = gl.minimum(n + words(self.b.shape[1]), group.N - 1).to(gl.int64)
        a_step = word(group.record + scaled_k_descriptors.scale_a_k)
        b_step = word(group.record + scaled_k_descriptors.scale_b_k)
        block = (group.start // BLOCK).to(gl.int64)
        return KSources(
            a + block * a_step + row * word(group.record + scaled_k_descriptors.scale_a_row),
            b + block * b_step + column * word(group.record + scaled_k_descriptors.scale_b_n),
            place_of_columns(),
            a_step,
            b_step,
        )

    @gluon.jit
    def copy(self, work, group, sources, i, k_tiles, slot):
        copy_words(self.a.index(slot), sources.a)
        if work.tiling.B_PANELS > 1:
            copy_columns(self.b.index(slot), sources.b_place, sources.b, work.tiling.BLOCK_N // 32)
        else:
            copy_words(self.b.index(slot), sources.b)
        a_step, b_step = sources.a_step, sources.b_step
        return KSources(sources.a + a_step, sources.b + b_step, sources.b_place, a_step, b_step)

    @gluon.jit
    def of_rows(self, slot, layout: gl.constexpr, ME: gl.constexpr, ROWS: gl.constexpr):
        return read_words(self.a.index(slot), ME * ROWS + gl.arange(0, ROWS, layout))

    @gluon.jit
    def of_columns(self, slot, layout: gl.constexpr, INDEX: gl.constexpr):
        COLUMNS: gl.constexpr = min(PART, self.b.shape[1])
        return read_pairs(self.b.index(slot), INDEX * COLUMNS + gl.arange(0, COLUMNS, layout))

    @gluon.jit
    def factor(self, group):
        """alpha, read anew for each tile: kept in a register for all of them it would make others spill."""
        at = word_now(group.record + scaled_k_descriptors.alpha_at)
        return load_factor(at, word_now(group.record + scaled_k_descriptors.alpha_bits))

    @gluon.jit
    def apply(self, alpha, sums):
        if alpha != 1.0:  # most have none: see factor.py
            sums *= alpha
        return sums


@gluon.jit
def make_k_scales(tiling):
    FLAT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    SWIZZLED_OUT: gl.constexpr = gl.NVMMASharedLayout(128, tiling.OUT.primitive_bitwidth, 2)
    C_COLUMNS: gl.constexpr = tiling.BLOCK_N // tiling.EPILOGUE_SUBTILES
    gl.static_assert(tiling.BLOCK_K == BLOCK, "a k-tile has one block of scales")
    AHEAD: gl.constexpr = tiling.B_PANELS > 1
    SLOTS: gl.constexpr = tiling.STAGES + 2 if AHEAD else tiling.STAGES
    BUFFERS: gl.constexpr = max(2, tiling.B_PANELS)
    return KBlockScales(
        gl.allocate_shared_memory(gl.float32, [SLOTS, tiling.BLOCK_M], FLAT),
        gl.allocate_shared_memory(gl.float32, [SLOTS, power_of_two(tiling.BLOCK_N)], FLAT),
        gl.allocate_shared_memory(tiling.OUT, [tiling.CONSUMERS * BUFFERS, tiling.CONSUMER_M, C_COLUMNS], SWIZZLED_OUT),
        AHEAD,
        SLOTS,
        tiling.BLOCK_M,
    )


@gluon.jit
def promote_part(work, slot, sums, part, of_row, INDEX: gl.constexpr):
    """The sums of a part with those of a k-tile, times its scales.

    Scales of columns are read behind the products: 32 registers that are live before would spill.
    """
    of_column = work.scaling.of_columns(slot, gl.SliceLayout(0, sums.type.layout), INDEX)
    return computed_here(sums + part * (of_row.expand_dims(1) * of_column.expand_dims(0)))


@gluon.jit
def zero_parts(work):
    """Accumulators of a tile: a tuple of its parts."""
    parts = (zero_part(work),)
    for _ in gl.static_range(1, part_count(work.tiling)):
        parts += (zero_part(work),)
    return parts


@gluon.jit
def start_part(work, slot, INDEX: gl.constexpr, ME: gl.constexpr):
    """The products of a part of a k-tile. They are in flight until they are waited for."""
    a, b = operands(work, slot, ME)
    if work.tiling.BLOCK_N > PART:
        b = b.slice(INDEX * PART, PART, 1)
    return warpgroup_mma(a, b, zero_part(work), is_async=True)


@gluon.jit
def add_part(work, slot, sums, of_row, INDEX: gl.constexpr, ME: gl.constexpr):
    """The sums of a part with those of a k-tile."""
    part = warpgroup_mma_wait(0, (start_part(work, slot, INDEX, ME),))
    return promote_part(work, slot, sums, part, of_row, INDEX)


@gluon.jit
def add_last_part(work, place, sums, of_row, exists, INDEX: gl.constexpr, ME: gl.constexpr):
    """As add_k_tile of hopper/promotion.py, for the last part. The slot is released when its scales of columns are
    read."""
    part = start_part(work, place.slot, INDEX, ME)
    following = place.next(work)
    known = is_full(work, following) | gl.where(exists, 0, 1)
    part = warpgroup_mma_wait(0, (part,))
    wait_full(work, following, known)
    sums = promote_part(work, place.slot, sums, part, of_row, INDEX)
    release_slot(work, place.slot)
    return sums, following


@gluon.jit
def multiply_k_tiles(work, k_tile, k_tiles, ME: gl.constexpr):
    """The parts of a tile's sums."""
    place = place_of(work, k_tile)
    if work.tiling.B_PANELS > 1:
        return multiply_wide(work, place, scale_slot(work, k_tile), None, k_tiles, False, zero_part(work).type, ME)
    else:
        sums = zero_parts(work)
        wait_full(work, place, gl.where(k_tiles > 0, 0, 1))
        for i in range(0, k_tiles):
            exists = i + 1 < k_tiles
            ROWS: gl.constexpr = gl.SliceLayout(1, sums[0].type.layout)
            of_row = work.scaling.of_rows(place.slot, ROWS, ME, work.tiling.CONSUMER_M)
            if work.tiling.BLOCK_N <= PART:
                only, place = add_last_part(work, place, sums[0], of_row, exists, 0, ME)
                sums = (only,)
            else:
                left = add_part(work, place.slot, sums[0], of_row, 0, ME)
                right, place = add_last_part(work, place, sums[1], of_row, exists, 1, ME)
                sums = left, right
        return sums


@gluon.jit
def store_part(work, coord, sums, INDEX: gl.constexpr, ME: gl.constexpr):
    """A part of a tile, in subtiles through consumer ME's two buffers in turns: one is filled while TMA reads the
    other."""
    LEADER: gl.constexpr = ME * gl.num_warps() * 32
    COLUMNS: gl.constexpr = work.scaling.c.shape[2]
    SUBTILES: gl.constexpr = sums.shape[1] // COLUMNS
    for i in gl.static_range(SUBTILES):
        buffer = work.scaling.c.index(2 * ME + i % 2)
        values = sums if SUBTILES == 1 else subtile(sums, i, SUBTILES)
        fill(buffer, values, 1)
        store_buffer(work, coord, buffer, INDEX * sums.shape[1] + i * COLUMNS, LEADER)
        commit_stores(LEADER)


@gluon.jit
def store_wide(work, coord, alpha, sums, k_tile, loaded, ME: gl.constexpr):
    """A tile of 192 columns, as many subtiles at once as consumer ME has buffers. As store_wide of hopper/promotion.py,
    where all of them have one: a stage less for that made float32 slower."""
    LEADER: gl.constexpr = ME * gl.num_warps() * 32
    COLUMNS: gl.constexpr = work.scaling.c.shape[2]
    SUBTILES: gl.constexpr = work.tiling.EPILOGUE_SUBTILES
    OF_PART: gl.constexpr = SUBTILES // part_count(work.tiling)
    BUFFERS: gl.constexpr = work.scaling.c.shape[0] // work.tiling.CONSUMERS
    for first in gl.static_range(0, SUBTILES, BUFFERS):
        tma.store_wait(0)
        gl.barrier()  # here and below as in `fill`
        for i in gl.static_range(BUFFERS):
            part = sums[(first + i) // OF_PART]
            values = part if OF_PART == 1 else subtile(part, (first + i) % OF_PART, OF_PART)
            values = work.scaling.apply(alpha, values)
            if loaded:
                values = with_addend(work, values, k_tile, first + i, ME)
            work.scaling.c.index(ME * BUFFERS + i).store(values.to(work.scaling.c.dtype))
        fence_async_shared()
        gl.barrier()
        for i in gl.static_range(BUFFERS):
            store_buffer(work, coord, work.scaling.c.index(ME * BUFFERS + i), (first + i) * COLUMNS, LEADER)
        commit_stores(LEADER)


@gluon.jit
def consume_tile(work, group, k_tile, k_tiles, m, n, ME: gl.constexpr):
    """Returns the count of k-tiles behind the tile. Where tiles have 192 columns registers are left for alpha during
    the products."""
    if work.tiling.B_PANELS > 1:
        alpha = work.scaling.factor(group)
        sums = multiply_k_tiles(work, k_tile, k_tiles, ME)
        k_tile += k_tiles
        loaded = work.schedule.loads_c(group)
        store_wide(work, store_coord(work, group, m, n), alpha, sums, k_tile, loaded, ME)
        k_tile += gl.where(loaded, work.schedule.ADDEND_SLOTS, 0)
    else:
        sums = multiply_k_tiles(work, k_tile, k_tiles, ME)
        coord = store_coord(work, group, m, n)
        for i in gl.static_range(part_count(work.tiling)):
            store_part(work, coord, work.scaling.apply(work.scaling.factor(group), sums[i]), i, ME)
        k_tile += k_tiles
    return k_tile


@gluon.jit
def consume_k_scaled(work, ME: gl.constexpr):
    """As `consume` of hopper/pipeline.py, for one group or two that share a tile. Rows past M are multiplied too: they
    are zeros, and TMA stores none of them."""
    gl.static_assert(not work.tiling.PINGPONG and not work.tiling.SWAP_AB, "two consumer groups share a tile")
    tile = gl.program_id(0)
    k_tile = 0
    group = work.schedule.first(tile)
    while tile < group.end:
        k_tiles = work.tiling.k_tiles(group.K)
        while tile < group.end:
            m, n = tile_coord(work, group, tile)
            k_tile = consume_tile(work, group, k_tile, k_tiles, m + ME * work.tiling.CONSUMER_M, n, ME)
            tile += gl.num_programs(0)
        group = work.schedule.next(group, tile)
    tma.store_wait(0)


@gluon.jit
def run_k_scaled(work):
    """As `run` of hopper/pipeline.py."""
    specialize(work, consume_k_scaled, produce_scaled, 1, CONSUMER_REGISTERS, work.schedule.PRODUCER_REGISTERS)
