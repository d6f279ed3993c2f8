"""`hopper`: C[g] = A[g] @ B[g] in Gluon for sm_90, warp-specialized: one producer warp, one or two consumer groups.

The host encodes the TMA descriptors of each group into the problem list, so that a CTA moves to another group at no cost
and no descriptor is ever written on the device. They lie in global memory or in the kernel's own parameters; Gluon has
no value for a descriptor behind an address, hence the copies in PTX here. Rows and columns past a group's edge are
filled with zeros by TMA on the way in and left out by it on the way out: no tile has a slow path. (It leaves columns
out by whole 16 bytes, hence the promise about N.)

    ends[groups]              cumulative tile counts, filled up to whole 64 bytes
    record[groups][RECORD]    descriptors of A, B and C (16 words each), M, N, K, 5 unused words
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

RECORD_WORDS = 56

_RECORD_BYTES = gl.constexpr(8 * RECORD_WORDS)
_A, _B, _C, _M, _N, _K = (gl.constexpr(8 * words) for words in (0, 16, 32, 48, 49, 50))  # places in a record
_CHUNK = gl.constexpr(64)  # 16-bit elements in a 128-byte swizzle: the inner extent of every TMA box


@gluon.jit
def word(address):
    return gl.inline_asm_elementwise("ld.b64 $0, [$1];", "=l,l", [address], dtype=gl.int64, is_pure=True, pack=1)


@gluon.jit
def list_address(problems, BY_VALUE: gl.constexpr):
    """Where the list lies: `problems` if it is in device memory, else in the parameters, from their first 64-byte
    boundary on: the hardware reads descriptors at no other."""
    by_value = gl.inline_asm_elementwise(
        "{ .reg .b64 parameter; mov.b64 parameter, " + BY_VALUE + "_param_0; cvta.param.u64 $0, parameter; "
        "add.s64 $0, $0, $1; and.b64 $0, $0, -64; }",
        "=l,l",
        [gl.to_tensor(63).to(gl.int64)],
        dtype=gl.int64,
        is_pure=True,
        pack=1,
    )
    return gl.where(problems == 0, by_value, problems)


@gluon.jit
def record_address(base, groups, group):
    ends_bytes = (groups + 7) // 8 * 64
    return base + ends_bytes.to(gl.int64) + group.to(gl.int64) * _RECORD_BYTES


@gluon.jit
def find_group(base, groups, tile, first_guess):
    """The group that owns `tile`, from `first_guess` on: one warp-wide look at 32 ends at a time."""
    lanes: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    WIDTH: gl.constexpr = 32 * gl.num_warps()
    group = first_guess
    searching = True
    start = first_guess
    while searching:
        index = start + gl.arange(0, WIDTH, lanes)
        ends = word(base + gl.minimum(index, groups - 1).to(gl.int64) * 8)
        behind = gl.sum(((ends <= tile) & (index < groups)).to(gl.int32), 0)
        group += behind
        start += WIDTH
        searching = (behind == WIDTH) & (start < groups)
    return group


@gluon.jit
def group_tiles(base, group):
    end = word(base + group.to(gl.int64) * 8).to(gl.int32)
    before = word(base + gl.maximum(group - 1, 0).to(gl.int64) * 8).to(gl.int32)
    return gl.where(group > 0, before, 0), end


@gluon.jit
def tile_position(index, M, N, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, RASTER: gl.constexpr):
    rows = gl.cdiv(M, BLOCK_M)
    columns = gl.cdiv(N, BLOCK_N)
    band = index // (RASTER * columns)
    band_rows = gl.minimum(rows - band * RASTER, RASTER)
    within = index % (RASTER * columns)
    return (band * RASTER + within % band_rows) * BLOCK_M, within // band_rows * BLOCK_N


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
def commit_out(leader):
    gl.inline_asm(
        "{ .reg .pred elected; .reg .b32 thread; mov.u32 thread, %tid.x; setp.eq.u32 elected, thread, $0; "
        "@elected cp.async.bulk.commit_group; }",
        "r",
        [leader],
    )


@gluon.aggregate
class Work:
    """What the warps of a CTA share: the list, the ring of A and B steps, output tiles, their barriers, the tiling."""

    base: gl.tensor
    groups: gl.tensor
    tiles: gl.tensor
    a_ring: gl.shared_memory_descriptor  # [STAGES, ...], a step of A each
    b_ring: gl.shared_memory_descriptor
    c_tiles: gl.shared_memory_descriptor  # [CONSUMERS, BLOCK_M, BLOCK_N / SLICES]
    filled: gl.shared_memory_descriptor  # a barrier for each stage: its bytes have come
    drained: gl.shared_memory_descriptor  # its products are done
    turn: gl.shared_memory_descriptor  # a barrier for each consumer group: the tensor cores are its own
    LAYOUT: gl.constexpr
    BLOCK_M: gl.constexpr
    BLOCK_N: gl.constexpr
    BLOCK_K: gl.constexpr
    STAGES: gl.constexpr
    RASTER: gl.constexpr
    CONSUMERS: gl.constexpr
    SLICES: gl.constexpr


@gluon.jit
def load_step(work, record, row, column, k, slot):
    """One BLOCK_K step of A and B into the ring, box by box."""
    barrier = work.filled.index(slot)
    a, b = work.a_ring.index(slot), work.b_ring.index(slot)
    mbarrier.expect(barrier, (work.BLOCK_M + work.BLOCK_N) * work.BLOCK_K * 2)
    if work.LAYOUT[0] == "n":
        for i in gl.static_range(work.BLOCK_K // _CHUNK):
            copy_in(record + _A, k + i * _CHUNK, row, barrier, a, i * work.BLOCK_M * 128)
    else:
        for i in gl.static_range(work.BLOCK_M // _CHUNK):
            copy_in(record + _A, row + i * _CHUNK, k, barrier, a, i * work.BLOCK_K * 128)
    if work.LAYOUT[1] == "n":
        for i in gl.static_range(work.BLOCK_N // _CHUNK):
            copy_in(record + _B, column + i * _CHUNK, k, barrier, b, i * work.BLOCK_K * 128)
    else:
        for i in gl.static_range(work.BLOCK_K // _CHUNK):
            copy_in(record + _B, k + i * _CHUNK, column, barrier, b, i * work.BLOCK_N * 128)


@gluon.jit
def produce(work):
    """The producer warp: keeps the ring filled, tile after tile."""
    tile = gl.program_id(0)
    step = 0
    group = 0
    while tile < work.tiles:
        group = find_group(work.base, work.groups, tile, group)
        first, end = group_tiles(work.base, group)
        record = record_address(work.base, work.groups, group)
        M = word(record + _M).to(gl.int32)
        N = word(record + _N).to(gl.int32)
        K = word(record + _K).to(gl.int32)
        while tile < end:
            row, column = tile_position(tile - first, M, N, work.BLOCK_M, work.BLOCK_N, work.RASTER)
            for k in range(0, K, work.BLOCK_K):
                slot = step % work.STAGES
                mbarrier.wait(work.drained.index(slot), (step // work.STAGES & 1) ^ 1)
                load_step(work, record, row, column, k, slot)
                step += 1
            tile += gl.num_programs(0)


@gluon.jit
def multiply(work, step, steps):
    """Sums `steps` products from the ring, one warpgroup product always in flight."""
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[gl.num_warps(), 1], instr_shape=[16, work.BLOCK_N, 16]
    )
    sums = gl.zeros([work.BLOCK_M, work.BLOCK_N], gl.float32, layout)
    for i in range(0, steps):
        slot = step % work.STAGES
        mbarrier.wait(work.filled.index(slot), step // work.STAGES & 1)
        a, b = work.a_ring.index(slot), work.b_ring.index(slot)
        if work.LAYOUT[0] == "t":
            a = a.permute((1, 0))
        if work.LAYOUT[1] == "t":
            b = b.permute((1, 0))
        sums = warpgroup_mma(a, b, sums, is_async=True)
        sums = warpgroup_mma_wait(1, (sums,))
        mbarrier.arrive(work.drained.index((step + work.STAGES - 1) % work.STAGES), pred=i > 0)
        step += 1
    sums = warpgroup_mma_wait(0, (sums,))
    mbarrier.arrive(work.drained.index((step + work.STAGES - 1) % work.STAGES), pred=steps > 0)
    return sums


@gluon.jit
def write_slice(slice, c_tile, descriptor, row, column, leader):
    tma.store_wait(0)
    gl.barrier()  # the compiler does not see copy_out read the tile: order it by hand on both sides
    c_tile.store(slice.to(c_tile.dtype))
    fence_async_shared()
    gl.barrier()
    for i in gl.static_range(slice.shape[1] // _CHUNK):
        copy_out(descriptor, column + i * _CHUNK, row, c_tile, i * slice.shape[0] * 128, leader)
    commit_out(leader)


@gluon.jit
def write_out(work, sums, c_tile, descriptor, row, column, leader):
    """The tile through shared memory to C, whole or as two halves one after the other, which leaves room for a stage."""
    if work.SLICES == 1:
        write_slice(sums, c_tile, descriptor, row, column, leader)
    else:
        left, right = sums.reshape([work.BLOCK_M, 2, work.BLOCK_N // 2]).permute((0, 2, 1)).split()
        write_slice(left, c_tile, descriptor, row, column, leader)
        write_slice(right, c_tile, descriptor, row, column + work.BLOCK_N // 2, leader)


@gluon.jit
def consume(work, ME: gl.constexpr):
    """Consumer group ME: every CONSUMERS-th tile of the CTA. Two of them take turns on the tensor cores, so that one
    multiplies while the other writes its tile out."""
    leader: gl.constexpr = ME * gl.num_warps() * 32
    tile = gl.program_id(0)
    step = 0
    count = 0
    group = 0
    while tile < work.tiles:
        group = find_group(work.base, work.groups, tile, group)
        first, end = group_tiles(work.base, group)
        record = record_address(work.base, work.groups, group)
        M = word(record + _M).to(gl.int32)
        N = word(record + _N).to(gl.int32)
        steps = gl.cdiv(word(record + _K).to(gl.int32), work.BLOCK_K)
        while tile < end:
            if count % work.CONSUMERS == ME:
                row, column = tile_position(tile - first, M, N, work.BLOCK_M, work.BLOCK_N, work.RASTER)
                if work.CONSUMERS == 2:
                    mbarrier.wait(work.turn.index(ME), (count // 2 & 1) ^ (1 - ME))
                sums = multiply(work, step, steps)
                if work.CONSUMERS == 2:
                    mbarrier.arrive(work.turn.index(1 - ME))
                write_out(work, sums, work.c_tiles.index(ME), record + _C, row, column, leader)
            step += steps
            count += 1
            tile += gl.num_programs(0)
    tma.store_wait(0)


@gluon.jit
def consume_first(work):
    consume(work, 0)


@gluon.jit
def consume_second(work):
    consume(work, 1)


@gluon.jit
def hopper(
    list_words,
    problems,
    groups,
    tiles,
    DTYPE: gl.constexpr,
    LAYOUT: gl.constexpr,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr,
    RASTER: gl.constexpr,
    CONSUMERS: gl.constexpr,
    SLICES: gl.constexpr,
    BY_VALUE: gl.constexpr,
):
    """One CTA of a persistent grid. Needs pointers on 16 bytes; 8 divides leading strides and N; any M, and K > 0.

    CONSUMERS 1: all warps on one tile; 2: two groups of warps on alternate tiles. SLICES: parts that a tile is written
    out in.
    """
    A_SHAPE: gl.constexpr = [BLOCK_M, BLOCK_K] if LAYOUT[0] == "n" else [BLOCK_K, BLOCK_M]
    B_SHAPE: gl.constexpr = [BLOCK_K, BLOCK_N] if LAYOUT[1] == "n" else [BLOCK_N, BLOCK_K]
    SWIZZLED: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    work = Work(
        list_address(problems, BY_VALUE),
        groups,
        tiles,
        gl.allocate_shared_memory(DTYPE, [STAGES, A_SHAPE[0], A_SHAPE[1]], SWIZZLED),
        gl.allocate_shared_memory(DTYPE, [STAGES, B_SHAPE[0], B_SHAPE[1]], SWIZZLED),
        gl.allocate_shared_memory(DTYPE, [CONSUMERS, BLOCK_M, BLOCK_N // SLICES], SWIZZLED),
        gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout()),
        gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout()),
        gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout()),
        LAYOUT,
        BLOCK_M,
        BLOCK_N,
        BLOCK_K,
        STAGES,
        RASTER,
        CONSUMERS,
        SLICES,
    )
    for i in gl.static_range(STAGES):
        mbarrier.init(work.filled.index(i), count=1)
        mbarrier.init(work.drained.index(i), count=1)
    for i in gl.static_range(2):
        mbarrier.init(work.turn.index(i), count=1)
    if CONSUMERS == 1:
        gl.warp_specialize([(consume_first, (work,)), (produce, (work,))], [1], [40])
    else:
        gl.warp_specialize(
            [(consume_first, (work,)), (consume_second, (work,)), (produce, (work,))], [4, 1], [232, 40]
        )
