"""The pipeline of the scaled `hopper` kernels: promotion of a tile's columns in parts, scales from the ring.

Promotion, as in DeepGEMM and section 3.3.2 of the DeepSeek-V3 report: wgmma keeps about 14 bits of the sums of fp8
products. So the tensor cores start each k-tile from zero, and the CUDA cores add its sums, times its scales, to float32
accumulators. A tile's sums are parts of 128 columns at most; those of more are multiplied by wide.py. While a group
promotes, the other one multiplies.

From the end of a promotion to the next products nothing else may be left to do. Measured on an H200: a batch of wgmma
takes its time in the tensor cores and what lies between the two, which is not hidden by the other group.

It takes from hopper/pipeline.py what is the same.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from .boxes import commit_stores
from .cluster import load_in_cluster
from .gather import GATHER_REGISTERS, GATHER_WARPS, GATHERING_CONSUMER_REGISTERS
from .gather_scaled import gather_scaled
from .load import load_k_tile
from .pipeline import operands, skip_k_tiles, specialize, store_coord, zero_columns
from .scale_ring import PART, part_columns, scale_slot
from .staged import (
    begin_tile,
    end_tiles,
    give_slot,
    is_staged,
    make_staging,
    pass_tile,
    stage_subtile,
    store_staged,
    tell_tile,
    wait_slot,
)
from .store import store_buffer, store_subtile, subtile
from .wide import multiply_wide
from .work import arrive_as_warp, arrive_when_copied, empty_slot, full_slot, pair_coord, release, tile_coord

SCALED_ARRIVALS = gl.constexpr(33)  # on a full barrier: of the TMA loads, and of each lane that copies scales


@gluon.jit
def copy_ahead(work, group, sources, i, k_tiles, k_tile):
    """The scales of a chunk if k-tile `i` of a tile is its first. `k_tile` counts those of the CTA, `i` among them."""
    if (i < k_tiles) & (i % work.scaling.CHUNK == 0):
        sources = work.scaling.copy(work, group, sources, i, k_tiles, scale_slot(work, k_tile))
    return sources


@gluon.jit
def produce_scaled(work):
    """As `produce` of hopper/load.py, with the scales."""
    tile = gl.program_id(0)
    k_tile = 0
    group = work.schedule.first(tile)
    while tile < group.end:
        work.schedule.acquire(group)  # the ring's k-tiles are multiplied meanwhile
        k_tiles = work.tiling.k_tiles(group.K)
        first_k = work.schedule.first_k(group)
        while tile < group.end:
            if work.tiling.CLUSTER == 2:
                m, n, shares_b = pair_coord(work, group, tile)
            else:
                m, n = tile_coord(work, group, tile)
            sources = work.scaling.sources(work, group, m, n)
            if work.scaling.AHEAD:
                sources = copy_ahead(work, group, sources, 0, k_tiles, k_tile)
            for i in range(0, k_tiles):
                slot = empty_slot(work, k_tile)
                k = first_k + i * work.tiling.BLOCK_K
                if work.tiling.CLUSTER == 2:
                    load_in_cluster(work, group, m, n, k, slot, tile % 2, shares_b)
                else:
                    load_k_tile(work, group, m, n, k, slot)
                if work.scaling.AHEAD:
                    arrive_when_copied(work.full.index(slot))
                    sources = copy_ahead(work, group, sources, i + 1, k_tiles, k_tile + 1)
                else:
                    sources = work.scaling.copy(work, group, sources, i, k_tiles, slot)
                    arrive_when_copied(work.full.index(slot))
                k_tile += 1
            if is_staged(work):
                k_tile = give_slot(work, k_tile, k_tiles)
            k_tile = work.schedule.load_behind(work, group, m, n, k_tile)
            tile += gl.num_programs(0)
        group = work.schedule.next(group, tile)


@gluon.aggregate
class Place:
    """Where a k-tile lies in the ring: its slot, and the parity of the phase in which that is filled for it."""

    slot: gl.tensor
    parity: gl.tensor

    @gluon.jit
    def next(self, work):
        """That of the k-tile behind it. The remainder of a division would take longer."""
        last = self.slot == work.tiling.STAGES - 1
        return Place(gl.where(last, 0, self.slot + 1), self.parity ^ gl.where(last, 1, 0))


@gluon.jit
def place_of(work, k_tile):
    STAGES: gl.constexpr = work.tiling.STAGES
    return Place(k_tile % STAGES, k_tile // STAGES & 1)


@gluon.jit
def is_full(work, place):
    """Whether a slot is filled, without a wait."""
    return gl.inline_asm(
        "{ .reg .pred full; mbarrier.test_wait.parity.shared::cta.b64 full, [$1], $2; selp.b32 $0, 1, 0, full; }",
        "=r,r,r",
        [work.full.index(place.slot), place.parity],
        result_types=gl.int32,
    )


@gluon.jit
def wait_full(work, place, known):
    """Waits for a slot, unless it is `known` to be filled.

    For `mbarrier.wait` the compiler would place a barrier of the consumer group in front of each k-tile, for reads of
    the ring that the empty barriers order.
    """
    gl.inline_asm(
        "{ .reg .pred full; setp.ne.b32 full, $2, 0; @full bra done; "
        "again: mbarrier.try_wait.parity.shared::cta.b64 full, [$0], $1; @!full bra again; done: }",
        "r,r,r",
        [work.full.index(place.slot), place.parity, known],
    )


@gluon.jit
def release_slot(work, slot):
    """As `release` of hopper/work.py, by the lane that the warp elects: to ask for a lane's number takes longer."""
    arrive_as_warp(work.empty.index(slot))


@gluon.constexpr_function
def part_count(tiling):
    """Parts of a tile's columns. A transposed tile's columns are rows of its sums, which are one part."""
    return 1 if tiling.SWAP_AB else tiling.BLOCK_N // part_columns(tiling.BLOCK_N)


@gluon.jit
def zero_part(work):
    """Accumulators of a part."""
    return zero_columns(work, part_columns(work.tiling.BLOCK_N))


@gluon.jit
def start_part(work, slot, ME: gl.constexpr):
    """The products of a k-tile of one part. They are in flight until they are waited for."""
    a, b = operands(work, slot, ME)
    return warpgroup_mma(a, b, zero_part(work), is_async=True)


@gluon.jit
def store_part(work, coord, values, INDEX: gl.constexpr, ME: gl.constexpr):
    """A part of a tile through consumer group ME's buffer, in as many subtiles as it takes."""
    tiling = work.tiling
    COLUMNS: gl.constexpr = work.c_buffers.shape[2]
    SUBTILES: gl.constexpr = tiling.EPILOGUE_SUBTILES // part_count(tiling)
    gl.static_assert(SUBTILES > 0, "a subtile is of one part")
    for i in gl.static_range(SUBTILES):
        if SUBTILES == 1:
            columns = values
        else:
            columns = subtile(values, i, SUBTILES)
        store_subtile(work, coord, columns, (INDEX * SUBTILES + i) * COLUMNS, ME, ME, 0)


@gluon.jit
def scales_of_part(work, slot, sums, INDEX: gl.constexpr, ME: gl.constexpr):
    """The scales of consumer ME's rows times that of a part's columns, in a slot. 1 where k-tiles have none."""
    if work.scaling.BLOCKS:
        ROWS: gl.constexpr = gl.SliceLayout(0 if work.tiling.SWAP_AB else 1, sums.type.layout)
        return work.scaling.of_rows(work, slot, ROWS, ME) * work.scaling.of_columns(slot, ROWS, INDEX)
    else:
        return 1.0


@gluon.jit
def computed_here(values):
    """The values. The compiler would compute them where they are used, and keep what they are made of until then."""
    return gl.inline_asm_elementwise("", "=f,0", [values], dtype=gl.float32, is_pure=False, pack=1)


@gluon.jit
def promote(work, sums, part, scales):
    """The sums of a part with those of a k-tile, times its scales."""
    if work.scaling.BLOCKS:
        return computed_here(sums + part * scales.expand_dims(0 if work.tiling.SWAP_AB else 1))
    else:
        return sums + part


@gluon.jit
def add_k_tile(work, place, sums, exists, ME: gl.constexpr):
    """The sums of a tile of one part with those of a k-tile that is there, which is released; and the next one's place.

    That is waited for if it `exists`, before the promotion: nothing is then left to do between the promotion and the
    next products. A slot with scales of the tile is kept: `times_scales` releases it.
    """
    part = start_part(work, place.slot, ME)
    scales = scales_of_part(work, place.slot, sums, 0, ME)
    following = place.next(work)
    known = is_full(work, following) | gl.where(exists, 0, 1)
    part = warpgroup_mma_wait(0, (part,))
    if work.scaling.LAST:
        release(work, place.slot, exists)
    else:
        release_slot(work, place.slot)
    wait_full(work, following, known)
    return promote(work, sums, part, scales), following


@gluon.jit
def times_scales(work, sums, slot, ME: gl.constexpr):
    """The sums of a tile times the scales of their rows and columns, which are in a slot; that is released."""
    M_DIM: gl.constexpr = 1 if work.tiling.SWAP_AB else 0
    ROWS: gl.constexpr = gl.SliceLayout(1 - M_DIM, sums.type.layout)
    COLUMNS: gl.constexpr = gl.SliceLayout(M_DIM, sums.type.layout)
    of_row = work.scaling.of_rows(work, slot, ROWS, ME).expand_dims(1 - M_DIM)
    of_column = work.scaling.of_columns(slot, COLUMNS, 0).expand_dims(M_DIM)
    sums *= of_row * of_column
    release_slot(work, slot)
    return sums


@gluon.jit
def multiply_scaled(work, factor, k_tile, k_tiles, ME: gl.constexpr):
    """The parts of a tile's sums, times their scales."""
    place = place_of(work, k_tile)
    if work.tiling.BLOCK_N > PART:
        slot = scale_slot(work, k_tile)
        return multiply_wide(work, place, slot, factor, k_tiles, is_staged(work), zero_part(work).type, ME)
    else:
        gl.static_assert(work.scaling.BLOCKS or work.scaling.LAST, "with one scale for all tiles are wide")
        sums = zero_part(work)
        wait_full(work, place, gl.where(k_tiles > 0, 0, 1))
        for i in range(0, k_tiles):
            sums, place = add_k_tile(work, place, sums, i + 1 < k_tiles, ME)
        if work.scaling.LAST and k_tiles > 0:  # else sums are zeros, and there are no scales
            sums = times_scales(work, sums, (k_tile + k_tiles - 1) % work.tiling.STAGES, ME)
        return (sums,)


@gluon.jit
def with_bias(work, group, biased, sums, n):
    """As add_group_bias of epilogues/linear.py, for a part of a tile's columns."""
    if work.schedule.HAS_BIAS and biased:
        M_DIM: gl.constexpr = 1 if work.tiling.SWAP_AB else 0
        columns = n + gl.arange(0, sums.shape[1 - M_DIM], gl.SliceLayout(M_DIM, sums.type.layout))
        bias = work.schedule.bias_row(group, work.tiling.OUT)
        bias += columns.to(gl.int64) * work.schedule.bias_stride(group)
        sums += gl.load(bias, mask=columns < group.N, other=0.0).to(gl.float32).expand_dims(M_DIM)
    return sums


@gluon.jit
def with_bias_of_part(work, group, biased, sums, n, INDEX: gl.constexpr):
    """As with_bias, of a part of the tile whose first column is `n`."""
    return with_bias(work, group, biased, sums, n + INDEX * part_columns(work.tiling.BLOCK_N))


@gluon.jit
def store_wide(work, group, biased, coord, sums, n, ME: gl.constexpr):
    """A tile of parts that have a buffer each: none waits until TMA has read the one before."""
    PARTS: gl.constexpr = part_count(work.tiling)
    LEADER: gl.constexpr = ME * gl.num_warps() * 32
    COLUMNS: gl.constexpr = work.c_buffers.shape[2]
    tma.store_wait(0)  # of the tile before
    gl.barrier()  # here and below as in `fill` of hopper/store.py
    for i in gl.static_range(PARTS):
        values = with_bias_of_part(work, group, biased, sums[i], n, i)
        work.c_buffers.index(ME * PARTS + i).store(values.to(work.c_buffers.dtype))
    fence_async_shared()
    gl.barrier()
    for i in gl.static_range(PARTS):
        store_buffer(work, coord, work.c_buffers.index(ME * PARTS + i), i * COLUMNS, LEADER)
    commit_stores(LEADER)


@gluon.jit
def stage_parts(work, staging, group, biased, sums, n, count, slot, ME: gl.constexpr):
    """A tile to where the warp that stores finds it, subtile by subtile."""
    SUBTILES: gl.constexpr = work.tiling.EPILOGUE_SUBTILES
    IN_PART: gl.constexpr = SUBTILES // part_count(work.tiling)
    COLUMNS: gl.constexpr = work.tiling.BLOCK_N // SUBTILES
    for i in gl.static_range(SUBTILES):
        values = subtile(sums[i // IN_PART], i % IN_PART, IN_PART)
        values = with_bias(work, group, biased, values, n + i * COLUMNS)
        stage_subtile(work, staging, count, slot, values, i, ME)


@gluon.jit
def store_parts(work, group, biased, coord, sums, n, ME: gl.constexpr):
    """A tile to C."""
    if work.tiling.B_PANELS > 1:
        store_wide(work, group, biased, coord, sums, n, ME)
    else:
        for i in gl.static_range(part_count(work.tiling)):
            store_part(work, coord, with_bias_of_part(work, group, biased, sums[i], n, i), i, ME)


@gluon.jit
def consume_scaled(work, ME: gl.constexpr):
    """As `consume` of hopper/pipeline.py, for one group or two that share a tile."""
    tiling = work.tiling
    gl.static_assert(not tiling.PINGPONG, "two consumer groups share a tile")
    tile = gl.program_id(0)
    k_tile = 0
    group = work.schedule.first(tile)
    while tile < group.end:
        k_tiles = tiling.k_tiles(group.K)
        biased = work.schedule.has_bias(group)  # read behind a tile's products it would hold up the next tile's
        factor = work.scaling.of_group(work, group)
        while tile < group.end:
            m, n = tile_coord(work, group, tile)
            m += ME * tiling.CONSUMER_M
            if m < work.schedule.M(group):
                sums = multiply_scaled(work, factor, k_tile, k_tiles, ME)
                coord = store_coord(work, group, m, n)
                if work.epilogue.HALVES:
                    work.epilogue.store(work, group, sums[0], sums[1], m, n // 2, ME)
                else:
                    store_parts(work, group, biased, coord, sums, n, ME)
            else:
                skip_k_tiles(work, k_tile, k_tiles)
            k_tile += k_tiles
            tile += gl.num_programs(0)
        group = work.schedule.next(group, tile)
    tma.store_wait(0)


@gluon.jit
def consume_staged(work, staging, ME: gl.constexpr):
    """As consume_scaled for two groups whose tiles a warp of its own stores, from the slot of the last k-tile too."""
    STAGES: gl.constexpr = work.tiling.STAGES
    tile = gl.program_id(0)
    k_tile = 0
    count = 0
    group = work.schedule.first(tile)
    while tile < group.end:
        k_tiles = work.tiling.k_tiles(group.K)
        biased = work.schedule.has_bias(group)  # as in consume_scaled
        factor = work.scaling.of_group(work, group)
        while tile < group.end:
            m, n = tile_coord(work, group, tile)
            last = k_tile + gl.maximum(k_tiles, 1) - 1
            tell_tile(work, staging, count, last % STAGES, store_coord(work, group, m, n), ME)
            if m + ME * work.tiling.CONSUMER_M < work.schedule.M(group):
                sums = multiply_scaled(work, factor, k_tile, k_tiles, ME)
                begin_tile(staging, count)
                wait_slot(work, k_tile, k_tiles)
                stage_parts(work, staging, group, biased, sums, n, count, last % STAGES, ME)
            else:
                skip_k_tiles(work, k_tile, k_tiles - 1)
                full_slot(work, last)  # or a later wait for that slot could take the phase before for its own
                begin_tile(staging, count)
            pass_tile(staging, ME)
            k_tile = last + 1
            count += 1
            tile += gl.num_programs(0)
        group = work.schedule.next(group, tile)
    end_tiles(staging, count, ME)


@gluon.jit
def run_scaled(work):
    """As `run` of hopper/pipeline.py. Where each k-tile has scales the producer keeps their addresses; and one group of
    consumers leaves it registers."""
    KEEPS_MORE: gl.constexpr = work.scaling.BLOCKS or work.tiling.CONSUMERS == 1
    PRODUCER: gl.constexpr = 56 if KEEPS_MORE else 40
    CONSUMER: gl.constexpr = 224 if KEEPS_MORE else 232
    if is_staged(work):
        staging = make_staging(work.tiling)
        gl.warp_specialize(
            [
                (consume_staged, (work, staging, 0)),
                (consume_staged, (work, staging, 1)),
                (produce_scaled, (work,)),
                (store_staged, (work, staging)),
            ],
            [4, 1, 1],
            [CONSUMER, PRODUCER, PRODUCER],
        )
    elif work.schedule.GATHERS:
        gl.static_assert(work.tiling.CONSUMERS == 2 and work.scaling.AHEAD, "two groups of wide.py's loop")
        specialize(work, consume_scaled, gather_scaled, GATHER_WARPS, GATHERING_CONSUMER_REGISTERS, GATHER_REGISTERS)
    else:
        specialize(work, consume_scaled, produce_scaled, 1, CONSUMER, PRODUCER)
