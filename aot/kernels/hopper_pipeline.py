"""What `hopper` and `hopper_ragged` do with their tiles, in Gluon: a producer warp, one or two consumer groups.

The host encodes the TMA descriptors, so that a CTA moves to another group at no cost and no descriptor is ever written
on the device. They lie in global memory or in the kernel's own parameters; Gluon has no value for a descriptor behind
an address, hence the copies in PTX here. Rows and columns past a group's edge are filled with zeros by TMA on the way in,
or are another group's, and left out by it on the way out: no tile has a slow path. (It leaves columns out by whole 16
bytes, hence the promise about N.)
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

from .hopper_tiles import first_group, next_group, tile_position, word

# Places in a record: A's descriptor comes first, then B's and C's; what follows differs between the two kernels.
_B, _C = (gl.constexpr(8 * words) for words in (16, 32))
_BIAS, _BIAS_ROW, _BIAS_COL, _SCALE_A, _SCALE_B, _SCALE_B_STEP = (gl.constexpr(8 * words) for words in range(49, 55))
_LIST_SCALE_A, _LIST_SCALE_B = (gl.constexpr(8 * words) for words in (51, 52))
# L2 policies, as `createpolicy` makes them.
_EVICT_FIRST, _EVICT_NORMAL = (gl.constexpr(policy) for policy in (0x12F0000000000000, 0x1000000000000000))
# hopper_ragged's C has two dimensions more, and rows counted from behind: see copy_out_ragged.
_LAST_ROW = gl.constexpr(1 << 30)


@gluon.aggregate
class Work:
    """What the warps of a CTA share: the groups, the ring of A and B steps, output tiles, barriers, the tiling."""

    base: gl.tensor  # the list, or the only record
    groups: gl.tensor
    rows: gl.tensor  # of a ragged matrix; a list has its sizes in the records
    columns: gl.tensor
    depth: gl.tensor
    offs: gl.tensor
    a_ring: gl.shared_memory_descriptor  # [STAGES, ...], a step of A each
    b_ring: gl.shared_memory_descriptor
    c_tiles: gl.shared_memory_descriptor  # [1 or 2, rows of a consumer group's tile, BLOCK_N / SLICES]
    filled: gl.shared_memory_descriptor  # a barrier for each stage: its bytes have come
    drained: gl.shared_memory_descriptor  # its products are done
    turn: gl.shared_memory_descriptor  # a barrier for each consumer group: the tensor cores are its own
    RAGGED: gl.constexpr
    LAYOUT: gl.constexpr
    BLOCK_M: gl.constexpr
    BLOCK_N: gl.constexpr
    BLOCK_K: gl.constexpr
    STAGES: gl.constexpr
    RASTER: gl.constexpr
    CONSUMERS: gl.constexpr
    SPLIT: gl.constexpr
    SLICES: gl.constexpr


@gluon.jit
def make_work(
    base, groups, rows, columns, depth, offs,
    DTYPE: gl.constexpr, OUT: gl.constexpr, RAGGED: gl.constexpr, LAYOUT: gl.constexpr,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr,
    RASTER: gl.constexpr, CONSUMERS: gl.constexpr, SPLIT: gl.constexpr, SLICES: gl.constexpr,
):  # fmt: skip
    A_SHAPE: gl.constexpr = [BLOCK_M, BLOCK_K] if LAYOUT[0] == "n" else [BLOCK_K, BLOCK_M]
    B_SHAPE: gl.constexpr = [BLOCK_K, BLOCK_N] if LAYOUT[1] == "n" else [BLOCK_N, BLOCK_K]
    SWIZZLED: gl.constexpr = gl.NVMMASharedLayout(128, DTYPE.primitive_bitwidth, 2)
    SWIZZLED_OUT: gl.constexpr = gl.NVMMASharedLayout(128, OUT.primitive_bitwidth, 2)
    BUFFERS: gl.constexpr = 2 if SLICES == 4 and CONSUMERS == 1 else CONSUMERS
    WARPS: gl.constexpr = gl.num_warps() * (CONSUMERS if SPLIT == 2 else 1)
    work = Work(
        base, groups, rows, columns, depth, offs,
        gl.allocate_shared_memory(DTYPE, [STAGES, A_SHAPE[0], A_SHAPE[1]], SWIZZLED),
        gl.allocate_shared_memory(DTYPE, [STAGES, B_SHAPE[0], B_SHAPE[1]], SWIZZLED),
        gl.allocate_shared_memory(OUT, [BUFFERS, BLOCK_M // SPLIT, BLOCK_N // SLICES], SWIZZLED_OUT),
        mbarrier.allocate_mbarrier(batch=STAGES),
        mbarrier.allocate_mbarrier(batch=STAGES),
        mbarrier.allocate_mbarrier(batch=2),
        RAGGED, LAYOUT, BLOCK_M, BLOCK_N, BLOCK_K, STAGES, RASTER, CONSUMERS, SPLIT, SLICES,
    )  # fmt: skip
    for i in gl.static_range(STAGES):
        mbarrier.init(work.filled.index(i), count=1)
        mbarrier.init(work.drained.index(i), count=WARPS)
    for i in gl.static_range(2):
        mbarrier.init(work.turn.index(i), count=1)
    return work


@gluon.jit
def run(work):
    """The CTA's warps to their parts."""
    if work.CONSUMERS == 1:
        gl.warp_specialize([(consume_first, (work,)), (produce, (work,))], [1], [40])
    else:
        gl.warp_specialize(
            [(consume_first, (work,)), (consume_second, (work,)), (produce, (work,))], [4, 1], [232, 40]
        )


@gluon.jit
def release(work, slot, pred):
    """This warp has done with a slot of the ring."""
    gl.inline_asm(
        "{ .reg .pred one; .reg .b32 lane; mov.u32 lane, %laneid; setp.lt.u32 one, lane, $1; "
        "@one mbarrier.arrive.shared::cta.b64 _, [$0]; }",
        "r,r",
        [work.drained.index(slot), gl.where(pred, 1, 0)],
    )


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
def copy_b(work, group, inner, outer, barrier, buffer, offset):
    if work.RAGGED:
        # Where groups have a row tile at most, nobody reads their matrices again: decoding is 1 % faster so.
        once = work.rows <= work.groups * (work.BLOCK_M // 2)
        policy = gl.where(once, _EVICT_FIRST, _EVICT_NORMAL)
        copy_in_of(group.record + _B, inner, outer, group.index, barrier, buffer, offset, policy)
    else:
        copy_in(group.record + _B, inner, outer, barrier, buffer, offset)


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
            copy_in(group.record, k + i * WIDE, row, barrier, a, i * work.BLOCK_M * 128)
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
def produce(work):
    """The producer warp: keeps the ring filled, tile after tile."""
    tile = gl.program_id(0)
    step = 0
    group, look = first_group(work, tile)
    while tile < group.end:
        while tile < group.end:
            row, column = tile_position(
                tile - group.first, group.stop - group.start, group.columns, work.BLOCK_M, work.BLOCK_N, work.RASTER
            )
            for k in range(0, group.depth, work.BLOCK_K):
                slot = step % work.STAGES
                mbarrier.wait(work.drained.index(slot), (step // work.STAGES & 1) ^ 1)
                load_step(work, group, group.start + row, column, k, slot)
                step += 1
            tile += gl.num_programs(0)
        group, look = next_group(work, group, look, tile)


@gluon.jit
def operands(work, slot, ME: gl.constexpr):
    """A step of A, or of the rows of it that are consumer ME's, and of B, as a product takes them."""
    a, b = work.a_ring.index(slot), work.b_ring.index(slot)
    ROWS: gl.constexpr = work.BLOCK_M // work.SPLIT
    if work.LAYOUT[0] == "t":
        a = a.permute((1, 0))
    if work.SPLIT == 2:
        a = a.slice(ME * ROWS, ROWS, 0)
    if work.LAYOUT[1] == "t":
        b = b.permute((1, 0))
    return a, b


@gluon.jit
def hand_over(work, ME: gl.constexpr):
    """The tensor cores to the other consumer group, where two take turns: its products queue behind those in flight."""
    if work.CONSUMERS == 2 and work.SPLIT == 1:
        mbarrier.arrive(work.turn.index(1 - ME))


@gluon.jit
def multiply(work, step, steps, ME: gl.constexpr):
    """Sums `steps` products from the ring, one warpgroup product always in flight.

    8-bit products are summed a step at a time: the tensor cores keep fewer bits than float32, so BLOCK_K products
    are as many as they add up themselves.
    """
    BITS: gl.constexpr = work.a_ring.dtype.primitive_bitwidth
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[gl.num_warps(), 1], instr_shape=[16, work.BLOCK_N, 256 // BITS]
    )
    sums = gl.zeros([work.BLOCK_M // work.SPLIT, work.BLOCK_N], gl.float32, layout)
    if BITS == 8:
        for i in range(0, steps):
            slot = step % work.STAGES
            mbarrier.wait(work.filled.index(slot), step // work.STAGES & 1)
            a, b = operands(work, slot, ME)
            part = gl.zeros([work.BLOCK_M // work.SPLIT, work.BLOCK_N], gl.float32, layout)
            part = warpgroup_mma(a, b, part, use_acc=False, is_async=True)
            part = warpgroup_mma_wait(0, (part,))
            release(work, slot, True)
            sums += part
            step += 1
        hand_over(work, ME)
        return sums
    else:
        for i in range(0, steps):
            slot = step % work.STAGES
            mbarrier.wait(work.filled.index(slot), step // work.STAGES & 1)
            a, b = operands(work, slot, ME)
            sums = warpgroup_mma(a, b, sums, is_async=True)
            sums = warpgroup_mma_wait(1, (sums,))
            release(work, (step + work.STAGES - 1) % work.STAGES, i > 0)
            step += 1
        hand_over(work, ME)
        sums = warpgroup_mma_wait(0, (sums,))
        release(work, (step + work.STAGES - 1) % work.STAGES, steps > 0)
        return sums


@gluon.jit
def pass_over(work, step, steps):
    """Lets `steps` steps go by: another consumer group multiplies them alone."""
    for _ in range(0, steps):
        slot = step % work.STAGES
        mbarrier.wait(work.filled.index(slot), step // work.STAGES & 1)
        release(work, slot, True)
        step += 1


@gluon.jit
def copy_out(descriptor, inner, outer, buffer, offset, leader):
    """One TMA box from `buffer` + `offset` bytes to global memory, issued by thread `leader` of the CTA."""
    gl.inline_asm(
        "{ .reg .pred elected; .reg .b32 thread, source; mov.u32 thread, %tid.x; setp.eq.u32 elected, thread, $5; "
        "add.u32 source, $3, $4; "
        "@elected cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [$0, {$1, $2}], [source]; }",
        "l,r,r,r,r,r",
        [descriptor, inner, outer, buffer, offset, leader],
    )


@gluon.jit
def copy_out_ragged(descriptor, inner, row, size, stop, buffer, offset, leader):
    """One TMA box to row `row` of the `size` rows that end at row `stop` of C; the hardware leaves out those past it.

    C's second dimension ends at _LAST_ROW, where the group's own end is put: row r of it is at _LAST_ROW - size + r.
    Two more dimensions move that to row stop - size + r of memory: `stop` counts rows, and _LAST_ROW of the other, of
    2^34 elements less a row each, take _LAST_ROW rows away, for addresses are taken modulo 2^64.
    """
    gl.inline_asm(
        "{ .reg .pred elected; .reg .b32 thread, source; mov.u32 thread, %tid.x; setp.eq.u32 elected, thread, $7; "
        "add.u32 source, $5, $6; "
        "@elected cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group" "[$0, {$1, $2, $3, $4}], [source]; }",
        "l,r,r,r,r,r,r,r",
        [descriptor, inner, _LAST_ROW - size + row, gl.to_tensor(_LAST_ROW), stop, buffer, offset, leader],
    )


@gluon.jit
def commit_out(leader):
    gl.inline_asm(
        "{ .reg .pred elected; .reg .b32 thread; mov.u32 thread, %tid.x; setp.eq.u32 elected, thread, $0; "
        "@elected cp.async.bulk.commit_group; }",
        "r",
        [leader],
    )


@gluon.jit
def write_slice(work, group, slice, row, column, ME: gl.constexpr, BUFFER: gl.constexpr, WRITING: gl.constexpr):
    LEADER: gl.constexpr = ME * gl.num_warps() * 32
    WIDE: gl.constexpr = 1024 // work.c_tiles.dtype.primitive_bitwidth
    buffer = work.c_tiles.index(BUFFER)
    tma.store_wait(WRITING)
    gl.barrier()  # the compiler does not see copy_out read the tile: order it by hand on both sides
    buffer.store(slice.to(buffer.dtype))
    fence_async_shared()
    gl.barrier()
    for i in gl.static_range(slice.shape[1] // WIDE):
        at = column + i * WIDE
        offset = i * slice.shape[0] * 128
        if work.RAGGED:
            copy_out_ragged(group.record + _C, at, row, group.stop - group.start, group.stop, buffer, offset, LEADER)
        else:
            copy_out(group.record + _C, at, row, buffer, offset, LEADER)
    commit_out(LEADER)


@gluon.jit
def scale(address, index):
    """Element `index` of the float32 array at `address`, 1 where there is none."""
    return gl.load(address.to(gl.pointer_type(gl.float32)) + index, mask=address != 0, other=1.0)


@gluon.jit
def finish(work, group, sums, column):
    """Scales and bias, before the sums are rounded. The rows behind the last group have neither."""
    BITS: gl.constexpr = work.a_ring.dtype.primitive_bitwidth
    if BITS == 8:
        if work.RAGGED:
            index = gl.minimum(group.index, work.groups - 1).to(gl.int64)
            sums *= scale(word(group.record + _SCALE_A), 0)
            sums *= scale(word(group.record + _SCALE_B), index * word(group.record + _SCALE_B_STEP))
        else:
            sums *= scale(word(group.record + _LIST_SCALE_A), 0)
            sums *= scale(word(group.record + _LIST_SCALE_B), 0)
    if work.RAGGED:
        bias = word(group.record + _BIAS)
        if (bias != 0) & (group.index < work.groups):
            OUT: gl.constexpr = work.c_tiles.dtype
            columns = column + gl.arange(0, work.BLOCK_N, gl.SliceLayout(0, sums.type.layout))
            row = bias.to(gl.pointer_type(OUT)) + group.index.to(gl.int64) * word(group.record + _BIAS_ROW)
            row += columns.to(gl.int64) * word(group.record + _BIAS_COL)
            sums += gl.load(row, mask=columns < group.columns, other=0.0).to(gl.float32).expand_dims(0)
    return sums


@gluon.jit
def halves(tile):
    return tile.reshape([tile.shape[0], 2, tile.shape[1] // 2]).permute((0, 2, 1)).split()


@gluon.jit
def write_out(work, group, sums, row, column, ME: gl.constexpr):
    """The tile through shared memory to C, whole or slice by slice, which leaves room for a stage of the ring."""
    sums = finish(work, group, sums, column)
    if work.SLICES == 1:
        write_slice(work, group, sums, row, column, ME, ME, 0)
    elif work.SLICES == 2:
        left, right = halves(sums)
        write_slice(work, group, left, row, column, ME, ME, 0)
        write_slice(work, group, right, row, column + work.BLOCK_N // 2, ME, ME, 0)
    else:
        # A group alone fills one buffer while the other is read; of two that take turns, each has one and waits.
        WIDTH: gl.constexpr = work.BLOCK_N // 4
        OTHER: gl.constexpr = 1 if work.CONSUMERS == 1 else ME
        WRITING: gl.constexpr = 1 if work.CONSUMERS == 1 else 0
        left, right = halves(sums)
        first, second = halves(left)
        third, fourth = halves(right)
        write_slice(work, group, first, row, column, ME, ME, WRITING)
        write_slice(work, group, second, row, column + WIDTH, ME, OTHER, WRITING)
        write_slice(work, group, third, row, column + 2 * WIDTH, ME, ME, WRITING)
        write_slice(work, group, fourth, row, column + 3 * WIDTH, ME, OTHER, WRITING)


@gluon.jit
def consume(work, ME: gl.constexpr):
    """Consumer group ME. Two of them share a tile, each half of its rows (SPLIT 2), or take turns on the tensor cores,
    so that one multiplies while the other writes its tile out."""
    tile = gl.program_id(0)
    step = 0
    count = 0
    group, look = first_group(work, tile)
    while tile < group.end:
        rows = group.stop - group.start
        steps = gl.cdiv(group.depth, work.BLOCK_K)
        while tile < group.end:
            row, column = tile_position(
                tile - group.first, rows, group.columns, work.BLOCK_M, work.BLOCK_N, work.RASTER
            )
            if work.SPLIT == 2:
                row += ME * (work.BLOCK_M // 2)
                if row < rows:
                    sums = multiply(work, step, steps, ME)
                    write_out(work, group, sums, row, column, ME)
                else:
                    pass_over(work, step, steps)
            elif work.CONSUMERS == 2:
                if count % 2 == ME:
                    mbarrier.wait(work.turn.index(ME), (count // 2 & 1) ^ (1 - ME))
                    sums = multiply(work, step, steps, ME)
                    write_out(work, group, sums, row, column, ME)
            else:
                sums = multiply(work, step, steps, ME)
                write_out(work, group, sums, row, column, ME)
            step += steps
            count += 1
            tile += gl.num_programs(0)
        group, look = next_group(work, group, look, tile)
    tma.store_wait(0)


@gluon.jit
def consume_first(work):
    consume(work, 0)


@gluon.jit
def consume_second(work):
    consume(work, 1)
