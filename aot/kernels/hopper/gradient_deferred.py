"""The warps of a kernel that goes back through an activation behind the products of the next tile.

A tile's way back takes as long as a seventh of its products, and its sums cannot wait in registers, which the next
tile's sums take. So each thread rounds its part of a tile and keeps it in memory of its own, which L2 holds. Between
the next tile's k-tiles it takes a part of 32 columns back, a quarter at a time, as products of one k-tile last as long
as that. Each of two consumer groups has half of a tile's rows, and they meet at no barrier but those of the ring.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from ..epilogues.gated_gradient import (
    go_back,
    make_gated_gradient,
    store_boxes,
    store_row_sums,
    wait_until_read,
)
from ..records import gradient_descriptors
from .boxes import load_4d_hinted
from .gather import (
    GATHER_REGISTERS,
    GATHER_WARPS,
    GATHERING_CONSUMER_REGISTERS,
    gather_tile,
    gathering_lanes,
    wait_alone,
)
from .gradient import make_barriers, make_ring
from .gradient_rows import arrive, prepare_rows
from .pipeline import operands, release_before, zero_sums
from .record import word
from .schedules.ragged_m import LAST_ROW, StoreCoord, ragged_row
from .store import from_halves, halves, round_pairs, subtile
from .work import Work, release

_PART = gl.constexpr(32)  # columns
_BUFFERS = gl.constexpr(3)  # of each consumer group: gate, up, h
_TILES = gl.constexpr(3)  # whose rows are known: the producer is a tile ahead of the products, the way back one behind
_CHUNK = gl.constexpr(16)  # bytes that a thread keeps side by side, and the other threads' behind them
# An L2 policy, as `createpolicy` makes it. z is read once, but by half lines: evicted first, they would come twice.
_EVICT_NORMAL = gl.constexpr(0x1000000000000000)


@gluon.aggregate
class DeferredGradient:
    """GatedGradient, with what passes between the warps."""

    row_weights: gl.shared_memory_descriptor  # [_TILES, BLOCK_M] float32
    row_places: gl.shared_memory_descriptor  # [_TILES, BLOCK_M] int32: where the sum of a row goes, or -1
    tiles: gl.shared_memory_descriptor  # [_TILES, 4] int32: where a tile lies, and whether there is one
    tile_full: gl.shared_memory_descriptor  # a barrier: what the producer tells of a tile is there
    part_full: gl.shared_memory_descriptor  # a barrier for each consumer group: so is its part of z
    SUMS_PER_OUTPUT: gl.constexpr = 1
    HALVES: gl.constexpr = False


@gluon.jit
def make_deferred_gradient(tiling):
    rows = make_gated_gradient(tiling.BLOCK_M, _TILES)
    epilogue = DeferredGradient(
        rows.row_weights,
        rows.row_places,
        gl.allocate_shared_memory(gl.int32, [_TILES, 4], gl.SwizzledSharedLayout(1, 1, 1, [0])),
        mbarrier.allocate_mbarrier(),
        mbarrier.allocate_mbarrier(batch=tiling.CONSUMERS),
    )
    mbarrier.init(epilogue.tile_full, count=32 * GATHER_WARPS)
    for i in gl.static_range(tiling.CONSUMERS):
        mbarrier.init(epilogue.part_full.index(i), count=1)
    # Before a CTA's first tile there is none: nothing is stored of it.
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    epilogue.row_weights.index(_TILES - 1).store(gl.zeros([tiling.BLOCK_M], gl.float32, layout))
    epilogue.row_places.index(_TILES - 1).store(gl.full([tiling.BLOCK_M], -1, gl.int32, layout))
    return epilogue


@gluon.jit
def make_deferred_work(schedule, tiling, scaling):
    """As make_work of hopper/work.py. The output's buffers are for a part of each consumer group: gate, up and h."""
    gl.static_assert(tiling.BLOCK_N == 8 * _PART and tiling.EPILOGUE_SUBTILES == 8, "part_of knows eight parts")
    gl.static_assert(tiling.OUT.primitive_bitwidth == 16, "dh waits in pairs of 16 bits")
    gl.static_assert(tiling.STAGES & (tiling.STAGES - 1) == 0, "slots are counted by bits")
    SWIZZLED: gl.constexpr = gl.NVMMASharedLayout(64, tiling.OUT.primitive_bitwidth, 2)
    full, empty = make_barriers(schedule, tiling)
    a_ring, b_ring = make_ring(tiling)
    c_buffers = gl.allocate_shared_memory(tiling.OUT, [tiling.CONSUMERS * _BUFFERS, tiling.CONSUMER_M, _PART], SWIZZLED)
    epilogue = make_deferred_gradient(tiling)
    return Work(schedule, a_ring, b_ring, c_buffers, full, empty, full, tiling, scaling, epilogue)


@gluon.jit
def k_tiles_of(work):
    """Of each tile, as there are no rows behind the last end. As many as the ring has, so that the producer is never
    two tiles ahead; those past K are zeros."""
    return gl.maximum(work.tiling.k_tiles(work.schedule.K), work.tiling.STAGES)


@gluon.jit
def tell_tile(work, m, stop, n, exists, turn):
    """To the consumers, which search no groups: the registers of a search would make them spill."""
    gl.inline_asm(
        "st.shared.v4.b32 [$0], {$1, $2, $3, $4};", "r,r,r,r,r", [work.epilogue.tiles.index(turn), m, stop, n, exists]
    )
    arrive(work.epilogue.tile_full)


@gluon.jit
def told_tile(work, count):
    """(m, stop, n, exists) of the CTA's `count`-th tile: where its rows lie in z, dz and h, as a StoreCoord says it."""
    mbarrier.wait(work.epilogue.tile_full, count & 1)
    return gl.inline_asm(
        "ld.shared.v4.b32 {$0, $1, $2, $3}, [$4];",
        "=r,=r,=r,=r,r",
        [work.epilogue.tiles.index(count % _TILES)],
        (gl.int32, gl.int32, gl.int32, gl.int32),
    )


@gluon.jit
def gather_and_tell(work):
    """As `gather` of hopper/gather.py, with what the way back of each tile needs to know. Behind the last is none."""
    lanes = gathering_lanes(work)
    tile = gl.program_id(0)
    k_tile = 0
    count = 0
    k_tiles = k_tiles_of(work)
    group = work.schedule.first(tile)
    while tile < group.end:
        while tile < group.end:
            m, n = work.tiling.coord(work.schedule.M(group), group.N, tile - group.first)
            prepare_rows(work, group, m, n, count % _TILES)
            tell_tile(work, ragged_row(group.start, group.stop, m), group.stop, n, 1, count % _TILES)
            k_tile = gather_tile(work, group, lanes, m, n, k_tile, k_tiles)
            count += 1
            tile += gl.num_programs(0)
        group = work.schedule.next(group, tile)
    tell_tile(work, 0, 0, 0, 0, count % _TILES)


@gluon.jit
def part_of(pairs, INDEX: gl.constexpr):
    """One of eight parts of a tile's columns."""
    left, right = halves(pairs)
    return subtile(left if INDEX < 4 else right, INDEX % 4, 4)


@gluon.jit
def from_quarters(quarters):
    return from_halves(from_halves(quarters[0], quarters[1]), from_halves(quarters[2], quarters[3]))


@gluon.constexpr_function
def _chunks(words):
    """The operands of `words` words, four in a chunk."""
    return ["{" + ", ".join(f"${4 * i + j}" for j in range(4)) + "}" for i in range(words // 4)]


@gluon.constexpr_function
def _keep(words, threads):
    """PTX that writes a thread's words. Operands: these, and the address."""
    chunks = enumerate(_chunks(words))
    return " ".join(f"st.global.v4.b32 [${words}+{i * threads * _CHUNK.value}], {chunk};" for i, chunk in chunks)


@gluon.constexpr_function
def _take(words, threads):
    chunks = enumerate(_chunks(words))
    return " ".join(f"ld.global.v4.b32 {chunk}, [${words}+{i * threads * _CHUNK.value}];" for i, chunk in chunks)


@gluon.jit
def own_memory(work, ME: gl.constexpr):
    """Where each thread of a consumer group keeps its part of a tile."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    BYTES: gl.constexpr = work.tiling.CONSUMER_M * work.tiling.BLOCK_N * work.tiling.OUT.primitive_bitwidth // 8
    group = gl.program_id(0) * work.tiling.CONSUMERS + ME
    of_group = word(work.schedule.base + gradient_descriptors.kept) + group.to(gl.int64) * BYTES
    return of_group + gl.arange(0, 32 * gl.num_warps(), layout) * _CHUNK


@gluon.jit
def keep(work, sums, own):
    THREADS: gl.constexpr = 32 * gl.num_warps()
    WORDS: gl.constexpr = work.tiling.CONSUMER_M * _PART // (2 * THREADS)
    pairs = round_pairs(work, sums)
    for i in gl.static_range(work.tiling.EPILOGUE_SUBTILES):
        gl.inline_asm(_keep(WORDS, THREADS), ("r", "l"), [part_of(pairs, i), own + i * WORDS * 4 * THREADS])


@gluon.jit
def take(work, own, part, TYPE: gl.constexpr):
    """A part of the tile that was kept, two neighbouring columns in a word."""
    THREADS: gl.constexpr = 32 * gl.num_warps()
    WORDS: gl.constexpr = work.tiling.CONSUMER_M * _PART // (2 * THREADS)
    return gl.inline_asm(_take(WORDS, THREADS), ("=r", "l"), [own + part * (WORDS * 4 * THREADS)], TYPE)


@gluon.jit
def buffers_of(work, ME: gl.constexpr):
    """A consumer group's: gate's, up's and h's."""
    FIRST: gl.constexpr = _BUFFERS * ME
    return work.c_buffers.index(FIRST), work.c_buffers.index(FIRST + 1), work.c_buffers.index(FIRST + 2)


@gluon.constexpr_function
def _expect(warp, bytes):
    return (
        "{ .reg .pred elected; .reg .b32 warp; elect.sync _|elected, 0xffffffff; mov.u32 warp, %tid.x; "
        f"shr.u32 warp, warp, 5; setp.eq.and.u32 elected, warp, {warp}, elected; "
        f"@elected mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], {bytes}; }}"
    )


@gluon.jit
def load_part(work, coord, column, ME: gl.constexpr):
    """Starts to load a part of z, once TMA has read the part before from the same buffers. The group's first warp does
    it, whose threads meet at the load: none of it comes before the wait of the thread that stored."""
    FIRST_WARP: gl.constexpr = ME * gl.num_warps()
    BYTES: gl.constexpr = 2 * work.tiling.CONSUMER_M * _PART * work.tiling.OUT.primitive_bitwidth // 8
    barrier = work.epilogue.part_full.index(ME)
    gate, up, _ = buffers_of(work, ME)
    record, last, policy = coord.record, gl.to_tensor(LAST_ROW), gl.to_tensor(_EVICT_NORMAL)
    wait_until_read(0)
    gl.inline_asm(_expect(FIRST_WARP, BYTES), "r", [barrier])
    load_4d_hinted(
        record + gradient_descriptors.z, column, coord.m, last, coord.stop, barrier, gate, 0, policy, FIRST_WARP
    )  # fmt: skip
    load_4d_hinted(
        record + gradient_descriptors.z_up, column, coord.m, last, coord.stop, barrier, up, 0, policy, FIRST_WARP
    )  # fmt: skip


@gluon.jit
def as_words(buffer, SHAPE: gl.constexpr):
    """A buffer of a part, two neighbouring columns in a word."""
    return buffer.reinterpret(gl.int32, SHAPE, gl.NVMMASharedLayout(64, 32, 2))


@gluon.jit
def values_of(work, words):
    left = words.to(gl.int16).to(work.tiling.OUT, bitcast=True)
    right = (words >> 16).to(gl.int16).to(work.tiling.OUT, bitcast=True)
    return gl.join(left, right).reshape([words.shape[0], 2 * words.shape[1]]).to(gl.float32)


@gluon.jit
def words_here(work, values):
    """As round_pairs of hopper/store.py, where it stands: LLVM would move it to where the words are stored."""
    PAIR: gl.constexpr = "bf16x2" if work.tiling.OUT == gl.bfloat16 else "f16x2"
    left, right = values.reshape([values.shape[0], values.shape[1] // 2, 2]).split()
    return gl.inline_asm_elementwise(
        "cvt.rn." + PAIR + ".f32 $0, $2, $1;", "=r,r,r", [left, right], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def write_part(work, of_gate, of_up, of_h, ME: gl.constexpr):
    """All words of a part to its buffers."""
    gate, up, h = buffers_of(work, ME)
    as_words(gate, of_gate.shape).store(of_gate)
    as_words(up, of_gate.shape).store(of_up)
    as_words(h, of_gate.shape).store(of_h)


@gluon.jit
def add_k_tiles(work, k_tile, sums, first, count, ME: gl.constexpr):
    """The products of `count` k-tiles, the last of which is in flight then. `first`: the first of the tile.

    As start_k_tile of hopper/pipeline.py, but that warps meet nowhere, and slots are counted by bits.
    """
    STAGES: gl.constexpr = work.tiling.STAGES
    for _ in range(0, count):
        slot = k_tile & (STAGES - 1)
        wait_alone(work.full.index(slot), k_tile // STAGES & 1)
        fence_async_shared()
        a, b = operands(work, slot, ME)
        sums = warpgroup_mma(a, b, sums, is_async=True)
        sums = warpgroup_mma_wait(1, (sums,))
        release(work, (k_tile - 1) & (STAGES - 1), k_tile > first)
        k_tile += 1
    return sums, k_tile


@gluon.jit
def k_tiles_between(work, k_tiles, part, FIRST: gl.constexpr, BEHIND: gl.constexpr):
    """Of a tile, those between two sixths of a part: two lie behind its load, one behind each quarter."""
    SIXTHS: gl.constexpr = 6 * work.tiling.EPILOGUE_SUBTILES
    return k_tiles * (6 * part + BEHIND) // SIXTHS - k_tiles * (6 * part + FIRST) // SIXTHS


@gluon.jit
def multiply_going_back(work, k_tile, k_tiles, coord, own, count, ME: gl.constexpr):
    """The products of the CTA's `count`-th tile, and between them all that becomes of the one before, at `coord`.
    With `k_tiles` 0 nothing is multiplied."""
    PARTS: gl.constexpr = work.tiling.EPILOGUE_SUBTILES
    ROWS: gl.constexpr = work.tiling.CONSUMER_M
    sums = zero_sums(work)
    words = part_of(round_pairs(work, sums), 0)
    WORDS: gl.constexpr = words.type
    products = values_of(work, subtile(words, 0, 4))  # zeros
    of_rows: gl.constexpr = gl.SliceLayout(1, products.type.layout)
    before = (count + _TILES - 1) % _TILES
    weights = work.epilogue.row_weights.index(before).slice(ME * ROWS, ROWS).load(of_rows).expand_dims(1)
    gate_buffer, up_buffer, h_buffer = buffers_of(work, ME)
    first = k_tile
    for part in range(0, PARTS):
        column = coord.n + part * _PART
        load_part(work, coord, column, ME)
        dh = take(work, own, part, WORDS)
        sums, k_tile = add_k_tiles(work, k_tile, sums, first, k_tiles_between(work, k_tiles, part, 0, 2), ME)
        wait_alone(work.epilogue.part_full.index(ME), part & 1)  # a tile has an even number of parts
        gate = as_words(gate_buffer, WORDS.shape).load(WORDS.layout)
        up = as_words(up_buffer, WORDS.shape).load(WORDS.layout)
        of_gate, of_up, of_h = (), (), ()
        for i in gl.static_range(4):
            dgate, dup, h, more = go_back(
                values_of(work, subtile(dh, i, 4)),
                values_of(work, subtile(gate, i, 4)),
                values_of(work, subtile(up, i, 4)),
                weights,
            )
            products += more
            of_gate = of_gate + (words_here(work, dgate),)  # noqa: RUF005
            of_up = of_up + (words_here(work, dup),)  # noqa: RUF005
            of_h = of_h + (words_here(work, h),)  # noqa: RUF005
            if i == 3:
                write_part(work, from_quarters(of_gate), from_quarters(of_up), from_quarters(of_h), ME)
                store_boxes(coord, column, gate_buffer, up_buffer, h_buffer, ME * gl.num_warps() * 32)
            behind = k_tiles_between(work, k_tiles, part, 2 + i, 3 + i)
            sums, k_tile = add_k_tiles(work, k_tile, sums, first, behind, ME)
    places = work.epilogue.row_places.index(before).slice(ME * ROWS, ROWS).load(of_rows)
    store_row_sums(coord, gl.sum(products, 1), places)
    return sums


@gluon.jit
def consume_deferred_gradient(work, ME: gl.constexpr):
    """Consumer group ME: its half of the rows of each tile."""
    k_tile = 0
    count = 0
    k_tiles = k_tiles_of(work)
    coord = StoreCoord(work.schedule.base, gl.to_tensor(LAST_ROW), gl.to_tensor(0), gl.to_tensor(0))  # of no tile
    own = own_memory(work, ME)
    keep(work, zero_sums(work), own)
    m, stop, n, exists = told_tile(work, 0)
    while exists != 0:
        sums = multiply_going_back(work, k_tile, k_tiles, coord, own, count, ME)
        coord = StoreCoord(work.schedule.base, m + ME * work.tiling.CONSUMER_M, stop, n)
        k_tile += k_tiles
        count += 1
        m, stop, n, exists = told_tile(work, count)
        sums = warpgroup_mma_wait(0, (sums,))
        release_before(work, k_tile, True)
        keep(work, sums, own)
    multiply_going_back(work, k_tile, 0, coord, own, count, ME)
    tma.store_wait(0)


@gluon.jit
def consume_upper_rows(work):
    consume_deferred_gradient(work, 0)


@gluon.jit
def consume_lower_rows(work):
    consume_deferred_gradient(work, 1)


@gluon.jit
def run_deferred_gradient(work):
    """Gives the CTA's warps their parts, as `run` of hopper/pipeline.py does."""
    gl.static_assert(work.schedule.GATHERS, "rows by an index")
    gl.warp_specialize(
        [(consume_upper_rows, (work,)), (consume_lower_rows, (work,)), (gather_and_tell, (work,))],
        [4, GATHER_WARPS],
        [GATHERING_CONSUMER_REGISTERS, GATHER_REGISTERS],
    )
