"""The producer warp of `hopper` and `hopper_ragged`: TMA from A and B into the ring.

The host encodes the descriptors, so that a CTA moves to another group at no cost and no descriptor is ever written on
the device. They lie in global memory or in the kernel's own parameters; Gluon has no value for a descriptor behind an
address, hence the copies in PTX here and in hopper_store. Rows and columns past a group's edge are filled with zeros,
or are another group's: see fetched_until.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from ..records import list_descriptors
from .tiles import LAST_ROW, counted_row, first_group, next_group, tile_position
from .work import steps_of

# L2 policies, as `createpolicy` makes them.
_EVICT_FIRST, _EVICT_NORMAL = (gl.constexpr(policy) for policy in (0x12F0000000000000, 0x1000000000000000))


@gluon.jit
def copy_in(descriptor, inner, outer, barrier, buffer, offset):
    """One TMA box to `buffer` + `offset` bytes; completes on `barrier`. For a partition of one warp."""
    gl.inline_asm(
        "{ .reg .pred elected; .reg .b32 destination; elect.sync _|elected, 0xffffffff; add.u32 destination, $4, $5; "
        "@elected cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[destination], [$0, {$1, $2}], [$3]; }",
        "l,r,r,r,r,r",
        [descriptor, inner, outer, barrier, buffer, offset],
    )


@gluon.jit
def copy_in_of(descriptor, inner, outer, group, barrier, buffer, offset, policy):
    """As copy_in, from matrix `group` of a stack; `policy` says how long L2 is to keep it."""
    gl.inline_asm(
        "{ .reg .pred elected; .reg .b32 destination; elect.sync _|elected, 0xffffffff; add.u32 destination, $5, $6; "
        "@elected cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[destination], [$0, {$1, $2, $3}], [$4], $7; }",
        "l,r,r,r,r,r,r,l",
        [descriptor, inner, outer, group, barrier, buffer, offset, policy],
    )


@gluon.jit
def copy_in_ragged(descriptor, inner, row, stop, barrier, buffer, offset):
    """As copy_in, from a ragged A: `row` and `stop` as counted_row has them."""
    gl.inline_asm(
        "{ .reg .pred elected; .reg .b32 destination; elect.sync _|elected, 0xffffffff; add.u32 destination, $6, $7; "
        "@elected cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[destination], [$0, {$1, $2, $3, $4}], [$5]; }",
        "l,r,r,r,r,r,r,r",
        [descriptor, inner, row, gl.to_tensor(LAST_ROW), stop, barrier, buffer, offset],
    )


@gluon.jit
def reads_weights_once(work):
    """Whether groups have half a row tile on average, so that hardly any has two, and matrices are read once."""
    return work.rows <= work.groups * (work.BLOCK_M // 2)


@gluon.jit
def fetched_until(work, group):
    """The row of a ragged A from which zeros are fetched: zeros past a group take less energy to multiply.

    Where memory sets the pace, other groups' rows are fetched instead. A tile that fetched less would run ahead of
    those that read the same columns of B, and out of step they no longer share them in L2.
    """
    if work.BLOCK_N == 256:
        return gl.where(reads_weights_once(work), work.rows, group.stop)
    else:
        return work.rows


@gluon.jit
def copy_a(work, group, inner, row, barrier, buffer, offset):
    if work.RAGGED:
        stop = fetched_until(work, group)
        copy_in_ragged(group.record, inner, counted_row(group.start, stop, row), stop, barrier, buffer, offset)
    else:
        copy_in(group.record, inner, row, barrier, buffer, offset)


@gluon.jit
def copy_b(work, group, inner, outer, barrier, buffer, offset):
    if work.RAGGED:
        # What is read once leaves L2 first: decoding is 1 % faster so.
        policy = gl.where(reads_weights_once(work), _EVICT_FIRST, _EVICT_NORMAL)
        copy_in_of(group.record + list_descriptors.b, inner, outer, group.index, barrier, buffer, offset, policy)
    else:
        copy_in(group.record + list_descriptors.b, inner, outer, barrier, buffer, offset)


@gluon.jit
def load_step(work, group, row, column, k, slot):
    """One BLOCK_K step of A and B into the ring, box by box; a box is 128 bytes wide."""
    barrier = work.filled.index(slot)
    a, b = work.a_ring.index(slot), work.b_ring.index(slot)
    BITS: gl.constexpr = a.dtype.primitive_bitwidth
    WIDE: gl.constexpr = 1024 // BITS
    mbarrier.expect(barrier, (work.BLOCK_M + work.BLOCK_N) * work.BLOCK_K * BITS // 8)
    if work.LAYOUT[0] == "n":
        for i in gl.static_range(work.BLOCK_K // WIDE):
            copy_a(work, group, k + i * WIDE, row, barrier, a, i * work.BLOCK_M * 128)
    else:
        for i in gl.static_range(work.BLOCK_M // WIDE):
            copy_in(group.record, row + i * WIDE, k, barrier, a, i * work.BLOCK_K * 128)
    if work.LAYOUT[1] == "n":
        for i in gl.static_range(work.BLOCK_N // WIDE):
            copy_b(work, group, column + i * WIDE, k, barrier, b, i * work.BLOCK_K * 128)
    else:
        for i in gl.static_range(work.BLOCK_K // WIDE):
            copy_b(work, group, k + i * WIDE, column, barrier, b, i * work.BLOCK_N * 128)


@gluon.jit
def first_k(work, group):
    """Where a group's steps start. The rows behind the last group have none: those they get lie past K, all zeros."""
    if work.AHEAD and work.RAGGED:
        return gl.where(group.depth > 0, 0, gl.cdiv(work.depth, work.BLOCK_K) * work.BLOCK_K)
    else:
        return 0


@gluon.jit
def load_steps(work, group, row, column, first, step, begin, end):
    """The steps [begin, end) of a tile, whose K starts at `first`; each waits until its slot of the ring is free."""
    for i in range(begin, end):
        slot = step % work.STAGES
        mbarrier.wait(work.drained.index(slot), (step // work.STAGES & 1) ^ 1)
        load_step(work, group, row, column, first + i * work.BLOCK_K, slot)
        step += 1
    return step


@gluon.jit
def produce_ragged(work):
    tile = gl.program_id(0)
    step = 0
    group, look = first_group(work, tile)
    while tile < group.end:
        steps = steps_of(work, group)
        first = first_k(work, group)
        while tile < group.end:
            row, column = tile_position(work, group, tile)
            step = load_steps(work, group, row, column, first, step, 0, steps)
            tile += gl.num_programs(0)
        group, look = next_group(work, group, look, tile)


@gluon.jit
def acquire_descriptor(address):
    gl.inline_asm("fence.proxy.tensormap::generic.acquire.gpu [$0], 128;", "l", [address])


@gluon.jit
def acquire_descriptors(work, group):
    """Makes TMA read a group's descriptors from memory, and not as the multiprocessor caches them.

    The cache is by address and outlives a kernel: where the list's memory held another list before, the descriptors of
    that one would be used, and C be written to its tensors. C's descriptor is the consumers': they write a tile after
    they waited for its steps, hence after this fence.
    """
    if work.uploaded:
        acquire_descriptor(group.record + list_descriptors.a)
        acquire_descriptor(group.record + list_descriptors.b)
        acquire_descriptor(group.record + list_descriptors.c)


@gluon.jit
def produce_listed(work):
    """The next group is found, and its descriptors are acquired, behind the first step of the last tile before it: TMA
    takes a microsecond to read them anew, and by then the ring has work for the consumers."""
    tile = gl.program_id(0)
    step = 0
    group, look = first_group(work, tile)
    acquire_descriptors(work, group)
    while tile < group.end:
        loaded = group
        row, column = tile_position(work, group, tile)
        steps = steps_of(work, group)
        begun = gl.minimum(steps, 1)
        step = load_steps(work, loaded, row, column, 0, step, 0, begun)
        tile += gl.num_programs(0)
        if tile >= group.end:
            group, look = next_group(work, group, look, tile)
            acquire_descriptors(work, group)
        step = load_steps(work, loaded, row, column, 0, step, begun, steps)


@gluon.jit
def produce(work):
    """The producer warp: keeps the ring filled, tile after tile."""
    if work.RAGGED:
        produce_ragged(work)
    else:
        produce_listed(work)
