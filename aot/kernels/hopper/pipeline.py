"""What `hopper` and `hopper_ragged` do with their tiles, in Gluon: a producer warp, one or two consumer groups."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

from .load import produce
from .store import finish, nowhere, place_of, rounded, write_out, write_quarter
from .tiles import first_group, next_group, tile_position
from .work import release, steps_of


@gluon.jit
def operands(work, slot, ME: gl.constexpr):
    """The factors of a step: A, or the rows of it that are consumer ME's, and B; or B's transpose and A's."""
    a, b = work.a_ring.index(slot), work.b_ring.index(slot)
    ROWS: gl.constexpr = work.BLOCK_M // work.SPLIT
    if work.LAYOUT[0] == "t":
        a = a.permute((1, 0))
    if work.SPLIT == 2:
        a = a.slice(ME * ROWS, ROWS, 0)
    if work.LAYOUT[1] == "t":
        b = b.permute((1, 0))
    if work.SWAPPED:
        return b.permute((1, 0)), a.permute((1, 0))
    else:
        return a, b


@gluon.jit
def hand_over(work, ME: gl.constexpr):
    """The tensor cores to the other consumer group, where two take turns: its products queue behind those in flight."""
    if work.CONSUMERS == 2 and work.SPLIT == 1:
        mbarrier.arrive(work.turn.index(1 - ME))


@gluon.jit
def no_sums(work):
    """Zeros, spread over a consumer group's threads as its products are."""
    BITS: gl.constexpr = work.a_ring.dtype.primitive_bitwidth
    ROWS: gl.constexpr = work.BLOCK_M // work.SPLIT
    SHAPE: gl.constexpr = [work.BLOCK_N, ROWS] if work.SWAPPED else [ROWS, work.BLOCK_N]
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[gl.num_warps(), 1], instr_shape=[16, SHAPE[1], 256 // BITS]
    )
    return gl.zeros(SHAPE, gl.float32, layout)


@gluon.jit
def start_step(work, step, sums, ME: gl.constexpr):
    """Adds the products of a step of the ring, once it has come; they are in flight until they are waited for."""
    slot = step % work.STAGES
    mbarrier.wait(work.filled.index(slot), step // work.STAGES & 1)
    a, b = operands(work, slot, ME)
    return warpgroup_mma(a, b, sums, is_async=True)


@gluon.jit
def release_before(work, step, pred):
    """The slot of the step before."""
    release(work, (step + work.STAGES - 1) % work.STAGES, pred)


@gluon.jit
def multiply(work, step, steps, ME: gl.constexpr):
    """Sums `steps` steps of the ring, products of one always in flight."""
    sums = no_sums(work)
    for i in range(0, steps):
        sums = start_step(work, step, sums, ME)
        sums = warpgroup_mma_wait(1, (sums,))
        release_before(work, step, i > 0)
        step += 1
    hand_over(work, ME)
    sums = warpgroup_mma_wait(0, (sums,))
    release_before(work, step, steps > 0)
    return sums


@gluon.jit
def multiply_promoted(work, step, steps, ME: gl.constexpr):
    """As multiply, for 8 bits: the tensor cores keep fewer bits than float32, so they add up no more than a step."""
    sums = no_sums(work)
    for i in range(0, steps):
        part = start_step(work, step, no_sums(work), ME)
        part = warpgroup_mma_wait(0, (part,))
        release(work, step % work.STAGES, True)
        sums += part
        step += 1
    hand_over(work, ME)
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
def consume_tile(work, group, step, steps, row, column, ME: gl.constexpr):
    if work.a_ring.dtype.primitive_bitwidth == 8:
        sums = multiply_promoted(work, step, steps, ME)
    else:
        sums = multiply(work, step, steps, ME)
    write_out(work, place_of(work, group, row, column), finish(work, group, sums, column), ME)


@gluon.jit
def consume(work, ME: gl.constexpr):
    """Consumer group ME. Two of them share a tile, each half of its rows (SPLIT 2), or take turns on the tensor cores,
    so that one multiplies while the other writes its tile out."""
    tile = gl.program_id(0)
    step = 0
    count = 0
    group, look = first_group(work, tile)
    while tile < group.end:
        steps = steps_of(work, group)
        while tile < group.end:
            row, column = tile_position(work, group, tile)
            if work.SPLIT == 2:
                row += ME * (work.BLOCK_M // 2)
                if row < group.stop - group.start:
                    consume_tile(work, group, step, steps, row, column, ME)
                else:
                    pass_over(work, step, steps)
            elif work.CONSUMERS == 2:
                if count % 2 == ME:
                    mbarrier.wait(work.turn.index(ME), (count // 2 & 1) ^ (1 - ME))
                    consume_tile(work, group, step, steps, row, column, ME)
            else:
                consume_tile(work, group, step, steps, row, column, ME)
            step += steps
            count += 1
            tile += gl.num_programs(0)
        group, look = next_group(work, group, look, tile)
    tma.store_wait(0)


@gluon.jit
def consume_ahead(work):
    """A consumer group alone. A tile is rounded when its last products end, and written out a quarter at a time while
    the tensor cores are at the first steps of the next, so that they wait for little else.

    No branch may lie between the start of a step's products and the wait behind it, or the compiler waits at once.
    """
    tile = gl.program_id(0)
    step = 0
    group, look = first_group(work, tile)
    row, column = tile_position(work, group, tile)
    place = nowhere(work, group)
    pairs = rounded(work, no_sums(work))
    while tile < group.end:
        steps = steps_of(work, group)
        sums = no_sums(work)
        for i in gl.static_range(4):
            sums = start_step(work, step, sums, 0)
            write_quarter(work, place, pairs, i)
            sums = warpgroup_mma_wait(1, (sums,))
            release_before(work, step, i > 0)
            step += 1
        for _ in range(4, steps):
            sums = start_step(work, step, sums, 0)
            sums = warpgroup_mma_wait(1, (sums,))
            release_before(work, step, True)
            step += 1
        done, place = group, place_of(work, group, row, column)
        tile += gl.num_programs(0)
        if tile >= group.end:
            group, look = next_group(work, group, look, tile)
        row, column = tile_position(work, group, tile)
        sums = warpgroup_mma_wait(0, (sums,))
        release_before(work, step, True)
        pairs = rounded(work, finish(work, done, sums, place.column))
    for i in gl.static_range(4):
        write_quarter(work, place, pairs, i)
    tma.store_wait(0)


@gluon.jit
def consume_first(work):
    if work.AHEAD:
        consume_ahead(work)
    else:
        consume(work, 0)


@gluon.jit
def consume_second(work):
    consume(work, 1)


@gluon.jit
def run(work):
    """The CTA's warps to their parts, and registers a thread to each, or consumers spill: the search through a ragged
    matrix keeps more in them."""
    PRODUCER: gl.constexpr = 40 if work.RAGGED else 24
    if work.CONSUMERS == 1:
        gl.warp_specialize([(consume_first, (work,)), (produce, (work,))], [1], [PRODUCER])
    else:
        gl.warp_specialize(
            [(consume_first, (work,)), (consume_second, (work,)), (produce, (work,))], [4, 1], [232, PRODUCER]
        )
