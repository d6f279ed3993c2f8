"""A tile staged whole, for a warp that stores it while the consumers multiply the next one.

A tile of 256 columns takes 64 KB in 16 bits, and each group of consumers has half of its rows, in four subtiles. The
first one goes to the group's buffer, the others to the slot of the tile's last k-tile: one where the group's own rows
of A lie, two where B lies, once the products of both groups are done. So no consumer waits until TMA has read what it
wrote. The slot is released by the warp that stores, for all warps of the consumers.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from .boxes import commit_stores
from .store import store_buffer
from .work import arrive_as_warp, arrive_in_cluster, arrive_when_copied, empty_slot, full_slot, shared_address

_WORDS = gl.constexpr(8)  # that the warp is told of a tile: five, and what puts the next ones on 16 bytes
_NO_TILE = gl.constexpr(-1)  # in place of a slot: there are no more


@gluon.constexpr_function
def is_staged(work):
    """Whether tiles are: of halves of gate and up one subtile's columns are stored, in float32 they have no room, and
    where the producer gathers there are no registers for another warp. Consumers that store their tiles by themselves,
    as those of k_scales.py, have scales that are not STAGED."""
    has_room = work.tiling.BLOCK_N == 256 and work.tiling.OUT.value.primitive_bitwidth == 16
    return work.scaling.STAGED and has_room and not work.epilogue.HALVES and not work.schedule.GATHERS


@gluon.aggregate
class Staging:
    """What the consumers and the warp that stores tell each other."""

    words: gl.shared_memory_descriptor  # of a tile and of the one before: the slot, and where it goes in C
    ready: gl.shared_memory_descriptor  # a barrier: TMA has read the tile before
    done: gl.shared_memory_descriptor  # a barrier: the products of the tile are
    staged: gl.shared_memory_descriptor  # a barrier for each group: its rows are there


@gluon.jit
def make_staging(tiling):
    staging = Staging(
        gl.allocate_shared_memory(gl.int32, [2 * _WORDS], gl.SwizzledSharedLayout(1, 1, 1, [0])),
        mbarrier.allocate_mbarrier(batch=1),
        mbarrier.allocate_mbarrier(batch=1),
        mbarrier.allocate_mbarrier(batch=tiling.CONSUMERS),
    )
    mbarrier.init(staging.ready.index(0), count=1)
    mbarrier.init(staging.done.index(0), count=tiling.CONSUMERS * gl.num_warps())
    for i in gl.static_range(tiling.CONSUMERS):
        mbarrier.init(staging.staged.index(i), count=gl.num_warps())
    return staging


@gluon.jit
def give_slot(work, k_tile, k_tiles):
    """The producer: a slot for a tile without k-tiles, whose sums are zeros. Returns the count of k-tiles behind it."""
    if k_tiles == 0:
        slot = empty_slot(work, k_tile)
        mbarrier.arrive(work.full.index(slot), count=1)
        arrive_when_copied(work.full.index(slot))
        k_tile += 1
    return k_tile


@gluon.jit
def wait_slot(work, k_tile, k_tiles):
    """A consumer: waits for that slot. One of a k-tile was waited for."""
    if k_tiles == 0:
        full_slot(work, k_tile)


@gluon.jit
def begin_tile(staging, count):
    """A consumer, whose products are done: waits until tile `count` of the CTA may be staged."""
    arrive_as_warp(staging.done.index(0))
    mbarrier.wait(staging.ready.index(0), count & 1)


@gluon.jit
def staged_subtile(work, slot, SUBTILE: gl.constexpr, ME: gl.constexpr):
    """Where a subtile of group ME is staged."""
    tiling = work.tiling
    COLUMNS: gl.constexpr = tiling.BLOCK_N // tiling.EPILOGUE_SUBTILES
    SWIZZLED: gl.constexpr = gl.NVMMASharedLayout(128, tiling.OUT.primitive_bitwidth, 2)
    GROUPS: gl.constexpr = tiling.CONSUMERS
    if SUBTILE == 0:
        return work.c_buffers.index(ME)
    elif SUBTILE == 1:
        of_a = work.a_ring.reinterpret(tiling.OUT, [tiling.STAGES * GROUPS, tiling.CONSUMER_M, COLUMNS], SWIZZLED)
        return of_a.index(slot * GROUPS + ME)
    else:
        of_b = work.b_ring.reinterpret(tiling.OUT, [tiling.STAGES * 2 * GROUPS, tiling.CONSUMER_M, COLUMNS], SWIZZLED)
        return of_b.index(slot * 2 * GROUPS + (SUBTILE - 2) * GROUPS + ME)


@gluon.jit
def stage_subtile(work, staging, count, slot, values, SUBTILE: gl.constexpr, ME: gl.constexpr):
    """A subtile's values. The other group may read B until its products are done."""
    if SUBTILE == 2:
        mbarrier.wait(staging.done.index(0), count & 1)
    buffer = staged_subtile(work, slot, SUBTILE, ME)
    buffer.store(values.to(buffer.dtype))


@gluon.jit
def _words(staging, count):
    """Where what is told of tile `count` lies. While it is written the warp that stores may read that of the tile
    before."""
    return shared_address(staging.words) + (count & 1) * (4 * _WORDS)


@gluon.jit
def _tell(staging, count, slot, words):
    """Each warp of the first group tells the same."""
    place_and_slot = _words(staging, count), slot
    gl.inline_asm(
        "{ .reg .pred one; elect.sync _|one, 0xffffffff; @one st.shared.v4.b32 [$0], {$1, $2, $3, $4}; "
        "@one st.shared.b32 [$0+16], $5; }",
        "r,r,r,r,r,r",
        place_and_slot + words,
    )


@gluon.jit
def tell_tile(work, staging, count, slot, coord, ME: gl.constexpr):
    """Before the products, behind which no registers are left: what tile `count` of the CTA is."""
    if ME == 0:
        _tell(staging, count, slot, work.schedule.words_of(coord))


@gluon.jit
def pass_tile(staging, ME: gl.constexpr):
    """Group ME's rows of a tile are staged. TMA reads them, through another proxy."""
    gl.inline_asm("fence.proxy.async.shared::cta; bar.warp.sync 0xffffffff;", "", [])
    arrive_as_warp(staging.staged.index(ME))


@gluon.jit
def end_tiles(staging, count, ME: gl.constexpr):
    if ME == 0:
        zero = gl.to_tensor(0)
        _tell(staging, count, gl.to_tensor(_NO_TILE), (zero, zero, zero, zero))
        mbarrier.wait(staging.ready.index(0), count & 1)
        pass_tile(staging, 0)


@gluon.jit
def _word(words, INDEX: gl.constexpr):
    return gl.inline_asm(f"ld.shared.b32 $0, [$1+{4 * INDEX}];", "=r,r", [words], result_types=gl.int32)


@gluon.jit
def _store_subtile(work, slot, coord, SUBTILE: gl.constexpr, ME: gl.constexpr):
    buffer = staged_subtile(work, slot, SUBTILE, ME)
    store_buffer(work, coord, buffer, SUBTILE * buffer.shape[1], None)


@gluon.jit
def store_staged(work, staging):
    """The warp that stores: tile after tile, what lies in the slot first, so that the slot is free soon."""
    tiling = work.tiling
    ready = staging.ready.index(0)
    mbarrier.arrive(ready, count=1)
    count = 0
    slot = gl.to_tensor(0)
    while slot != _NO_TILE:
        mbarrier.wait(staging.staged.index(0), count & 1)
        words = _words(staging, count)
        slot = _word(words, 0)
        if slot != _NO_TILE:
            m, stop, n, index = _word(words, 1), _word(words, 2), _word(words, 3), _word(words, 4)
            for me in gl.static_range(tiling.CONSUMERS):
                if me > 0:
                    mbarrier.wait(staging.staged.index(me), count & 1)
                coord = work.schedule.coord_of(m + me * tiling.CONSUMER_M, stop, n, index)
                for i in gl.static_range(1, tiling.EPILOGUE_SUBTILES):
                    _store_subtile(work, slot, coord, i, me)
            commit_stores(None)
            for me in gl.static_range(tiling.CONSUMERS):
                coord = work.schedule.coord_of(m + me * tiling.CONSUMER_M, stop, n, index)
                _store_subtile(work, slot, coord, 0, me)
            commit_stores(None)
            tma.store_wait(1)
            gl.barrier()  # one lane waited for TMA, and another may arrive
            if tiling.CLUSTER == 2:
                arrive_in_cluster(work.empty.index(slot), True, 4 * tiling.CONSUMERS)
            else:
                mbarrier.arrive(work.empty.index(slot), count=4 * tiling.CONSUMERS)
            tma.store_wait(0)
            gl.barrier()
            mbarrier.arrive(ready, count=1)
        count += 1
