"""What sums are added to, where not TMA adds them but the consumers: C comes through the ring of k-tiles.

TMA adds a box of sums to C by itself (matrices.py). L2 makes the additions, and moves 1.9 TB/s at them where a copy
moves 3 (one H100). Products of much K hide that. Where a group has little, the producer loads a tile of C behind its
k-tiles, as gradient.py does with z: it is there when the last products end, and what leaves is added to nothing. Either
way there is one addition an element, of the same two numbers. Figures are in benchmarks/notes/gradients.md.

A slot holds blocks of the size that a consumer group stores at once, a subtile: first where A lies, then where B does.
The first subtile of each group comes first, then their second ones.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from .boxes import EVICT_FIRST, load_3d
from .work import arrive_when_copied, empty_slot, full_slot, release

# Of a row's K, up to which C is loaded: of more, products hide most of what L2 takes.
LOADED_BYTES = gl.constexpr(2048)


@gluon.constexpr_function
def _block_bytes(tiling):
    return tiling.CONSUMER_M * tiling.BLOCK_N // tiling.EPILOGUE_SUBTILES * tiling.OUT.value.primitive_bitwidth // 8


@gluon.constexpr_function
def _blocks_of_a(tiling):
    return tiling.BLOCK_M * tiling.BLOCK_K * tiling.DTYPE.value.primitive_bitwidth // 8 // _block_bytes(tiling)


@gluon.constexpr_function
def _blocks_of_b(tiling):
    return tiling.BLOCK_N * tiling.BLOCK_K * tiling.DTYPE.value.primitive_bitwidth // 8 // _block_bytes(tiling)


@gluon.constexpr_function
def _slot_of(tiling, subtile, me):
    return (tiling.CONSUMERS * subtile + me) // (_blocks_of_a(tiling) + _blocks_of_b(tiling))


@gluon.constexpr_function
def addend_slots(tiling):
    """Slots that a tile of C takes, for kernels whose two consumer groups share a tile of float32. 0: TMA adds."""
    if not tiling.COOPERATIVE or tiling.OUT.value.primitive_bitwidth != 32:
        return 0
    return _slot_of(tiling, tiling.EPILOGUE_SUBTILES - 1, tiling.CONSUMERS - 1) + 1


@gluon.jit
def loads_c(schedule, group):
    """Whether C is loaded for a group, if sums are added to it."""
    K_TILE_BYTES: gl.constexpr = schedule.tiling.BLOCK_K * schedule.tiling.DTYPE.primitive_bitwidth // 8
    return schedule.tiling.k_tiles(group.K) <= LOADED_BYTES // K_TILE_BYTES


@gluon.jit
def _block(work, slot, BLOCK: gl.constexpr):
    """A block of a slot, as a subtile's buffer."""
    tiling = work.tiling
    COLUMNS: gl.constexpr = tiling.BLOCK_N // tiling.EPILOGUE_SUBTILES
    LAYOUT: gl.constexpr = gl.NVMMASharedLayout(128, tiling.OUT.primitive_bitwidth, 2)
    IN_A: gl.constexpr = _blocks_of_a(tiling)
    IN_B: gl.constexpr = _blocks_of_b(tiling)
    if BLOCK < IN_A:
        blocks = work.a_ring.reinterpret(tiling.OUT, [tiling.STAGES * IN_A, tiling.CONSUMER_M, COLUMNS], LAYOUT)
        return blocks.index(slot * IN_A + BLOCK)
    else:
        blocks = work.b_ring.reinterpret(tiling.OUT, [tiling.STAGES * IN_B, tiling.CONSUMER_M, COLUMNS], LAYOUT)
        return blocks.index(slot * IN_B + (BLOCK - IN_A))


@gluon.jit
def _load_slot(work, group, m, n, slot, INDEX: gl.constexpr):
    """Starts to load the blocks that lie in slot INDEX of a tile's C. Their bytes arrive on the slot's full barrier."""
    tiling = work.tiling
    IN_SLOT: gl.constexpr = _blocks_of_a(tiling) + _blocks_of_b(tiling)
    FIRST: gl.constexpr = INDEX * IN_SLOT
    COUNT: gl.constexpr = min(IN_SLOT, tiling.CONSUMERS * tiling.EPILOGUE_SUBTILES - FIRST)
    COLUMNS: gl.constexpr = tiling.BLOCK_N // tiling.EPILOGUE_SUBTILES
    BOX: gl.constexpr = 1024 // tiling.OUT.primitive_bitwidth
    barrier = work.full.index(slot)
    descriptor, policy = work.schedule.descriptor_of_c(group), gl.to_tensor(EVICT_FIRST)  # C is read once
    mbarrier.expect(barrier, COUNT * _block_bytes(tiling))
    for i in gl.static_range(COUNT):
        block = _block(work, slot, i)
        row = m + (FIRST + i) % tiling.CONSUMERS * tiling.CONSUMER_M
        column = n + (FIRST + i) // tiling.CONSUMERS * COLUMNS
        for j in gl.static_range(COLUMNS // BOX):
            offset = j * tiling.CONSUMER_M * 128
            load_3d(descriptor, column + j * BOX, row, group.index, barrier, block, offset, policy)


@gluon.jit
def load_addends(work, group, m, n, k_tile):
    """Loads a tile of C into the slots from that of `k_tile` on, each when it is empty. Returns the count of k-tiles
    behind them."""
    for i in gl.static_range(work.schedule.ADDEND_SLOTS):
        slot = empty_slot(work, k_tile)
        _load_slot(work, group, m, n, slot, i)
        if work.schedule.ARRIVALS > 1:
            arrive_when_copied(work.full.index(slot))
        k_tile += 1
    return k_tile


@gluon.jit
def with_addend(work, values, k_tile, SUBTILE: gl.constexpr, ME: gl.constexpr):
    """A subtile of consumer group ME, and what C has there, from the slots from that of `k_tile` on. Behind the last
    one that the group has in a slot the slot is released.

    TMA writes the slot, through another proxy than the loads read it: without the fence an arrive orders none of them
    before it. Of 33,820 products without one 2,090 were wrong.
    """
    tiling = work.tiling
    INDEX: gl.constexpr = _slot_of(tiling, SUBTILE, ME)
    IN_SLOT: gl.constexpr = _blocks_of_a(tiling) + _blocks_of_b(tiling)
    k_tile += INDEX
    slot = k_tile % tiling.STAGES
    if SUBTILE == 0 or _slot_of(tiling, SUBTILE - 1, ME) != INDEX:
        full_slot(work, k_tile)
    addends = _block(work, slot, (tiling.CONSUMERS * SUBTILE + ME) % IN_SLOT).load(values.type.layout)
    if SUBTILE + 1 == tiling.EPILOGUE_SUBTILES or _slot_of(tiling, SUBTILE + 1, ME) != INDEX:
        gl.inline_asm("fence.proxy.async.shared::cta; bar.warp.sync 0xffffffff;", "", [])
        release(work, slot, True)
    return values + addends
