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


@gluon.jit
def load_step(
    a,
    b,
    row,
    column,
    k,
    barrier,
    a_buffer,
    b_buffer,
    LAYOUT: gl.constexpr,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
):
    """One BLOCK_K step of A and B, box by box."""
    if LAYOUT[0] == "n":
        for i in gl.static_range(BLOCK_K // _CHUNK):
            copy_in(a, k + i * _CHUNK, row, barrier, a_buffer, i * BLOCK_M * 128)
    else:
        for i in gl.static_range(BLOCK_M // _CHUNK):
            copy_in(a, row + i * _CHUNK, k, barrier, a_buffer, i * BLOCK_K * 128)
    if LAYOUT[1] == "n":
        for i in gl.static_range(BLOCK_N // _CHUNK):
            copy_in(b, column + i * _CHUNK, k, barrier, b_buffer, i * BLOCK_K * 128)
    else:
        for i in gl.static_range(BLOCK_K // _CHUNK):
            copy_in(b, k + i * _CHUNK, column, barrier, b_buffer, i * BLOCK_N * 128)


@gluon.jit
def produce(
    base,
    groups,
    tiles,
    a_ring,
    b_ring,
    c_tiles,
    filled,
    drained,
    turn,
    LAYOUT: gl.constexpr,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr,
    RASTER: gl.constexpr,
    CONSUMERS: gl.constexpr,
    SLICES: gl.constexpr,
):
    """The producer warp: keeps the ring of STAGES filled, tile after tile."""
    tile = gl.program_id(0)
    step = 0
    group = 0
    while tile < tiles:
        group = find_group(base, groups, tile, group)
        first, end = group_tiles(base, group)
        record = record_address(base, groups, group)
        M = word(record + 384).to(gl.int32)
        N = word(record + 392).to(gl.int32)
        K = word(record + 400).to(gl.int32)
        while tile < end:
            row, column = tile_position(tile - first, M, N, BLOCK_M, BLOCK_N, RASTER)
            for k in range(0, K, BLOCK_K):
                slot = step % STAGES
                mbarrier.wait(drained.index(slot), (step // STAGES & 1) ^ 1)
                barrier = filled.index(slot)
                mbarrier.expect(barrier, (BLOCK_M + BLOCK_N) * BLOCK_K * 2)
                load_step(
                    record,
                    record + 128,
                    row,
                    column,
                    k,
                    barrier,
                    a_ring.index(slot),
                    b_ring.index(slot),
                    LAYOUT,
                    BLOCK_M,
                    BLOCK_N,
                    BLOCK_K,
                )
                step += 1
            tile += gl.num_programs(0)


@gluon.jit
def multiply(
    step,
    steps,
    a_ring,
    b_ring,
    filled,
    drained,
    LAYOUT: gl.constexpr,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr,
    accumulators: gl.constexpr,
):
    """Sums `steps` products from the ring, one warpgroup product always in flight."""
    sums = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, accumulators)
    for i in range(0, steps):
        slot = step % STAGES
        mbarrier.wait(filled.index(slot), step // STAGES & 1)
        a = a_ring.index(slot)
        b = b_ring.index(slot)
        if LAYOUT[0] == "t":
            a = a.permute((1, 0))
        if LAYOUT[1] == "t":
            b = b.permute((1, 0))
        sums = warpgroup_mma(a, b, sums, is_async=True)
        sums = warpgroup_mma_wait(1, (sums,))
        mbarrier.arrive(drained.index((step + STAGES - 1) % STAGES), pred=i > 0)
        step += 1
    sums = warpgroup_mma_wait(0, (sums,))
    mbarrier.arrive(drained.index((step + STAGES - 1) % STAGES), pred=steps > 0)
    return sums


@gluon.jit
def write_slice(slice, c_tile, descriptor, row, column, LEADER: gl.constexpr, BLOCK_M: gl.constexpr):
    tma.store_wait(0)
    gl.barrier()  # the compiler does not see copy_out read the tile: order it by hand on both sides
    c_tile.store(slice.to(c_tile.dtype))
    fence_async_shared()
    gl.barrier()
    for i in gl.static_range(slice.shape[1] // _CHUNK):
        copy_out(descriptor, column + i * _CHUNK, row, c_tile, i * BLOCK_M * 128, LEADER)
    commit_out(LEADER)


@gluon.jit
def write_out(
    sums,
    c_tile,
    descriptor,
    row,
    column,
    LEADER: gl.constexpr,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    SLICES: gl.constexpr,
):
    """The tile through shared memory to C, whole or as two halves one after the other, which leaves room for a stage."""
    if SLICES == 1:
        write_slice(sums, c_tile, descriptor, row, column, LEADER, BLOCK_M)
    else:
        left, right = sums.reshape([BLOCK_M, 2, BLOCK_N // 2]).permute((0, 2, 1)).split()
        write_slice(left, c_tile, descriptor, row, column, LEADER, BLOCK_M)
        write_slice(right, c_tile, descriptor, row, column + BLOCK_N // 2, LEADER, BLOCK_M)


@gluon.jit
def consume(
    base,
    groups,
    tiles,
    a_ring,
    b_ring,
    c_tiles,
    filled,
    drained,
    turn,
    LAYOUT: gl.constexpr,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr,
    RASTER: gl.constexpr,
    CONSUMERS: gl.constexpr,
    SLICES: gl.constexpr,
    ME: gl.constexpr,
):
    """Consumer group ME: every CONSUMERS-th tile of the CTA. Two of them take turns on the tensor cores, so that one
    multiplies while the other writes its tile out."""
    accumulators: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[gl.num_warps(), 1], instr_shape=[16, BLOCK_N, 16]
    )
    LEADER: gl.constexpr = ME * gl.num_warps() * 32
    tile = gl.program_id(0)
    step = 0
    count = 0
    group = 0
    while tile < tiles:
        group = find_group(base, groups, tile, group)
        first, end = group_tiles(base, group)
        record = record_address(base, groups, group)
        M = word(record + 384).to(gl.int32)
        N = word(record + 392).to(gl.int32)
        steps = gl.cdiv(word(record + 400).to(gl.int32), BLOCK_K)
        while tile < end:
            if count % CONSUMERS == ME:
                row, column = tile_position(tile - first, M, N, BLOCK_M, BLOCK_N, RASTER)
                if CONSUMERS == 2:
                    mbarrier.wait(turn.index(ME), (count // 2 & 1) ^ (1 - ME))
                sums = multiply(
                    step, steps, a_ring, b_ring, filled, drained, LAYOUT, BLOCK_M, BLOCK_N, STAGES, accumulators
                )
                if CONSUMERS == 2:
                    mbarrier.arrive(turn.index(1 - ME))
                write_out(
                    sums, c_tiles.index(ME), record + 256, row, column, LEADER, BLOCK_M, BLOCK_N, SLICES
                )
            step += steps
            count += 1
            tile += gl.num_programs(0)
    tma.store_wait(0)


@gluon.jit
def consume_first(
    base,
    groups,
    tiles,
    a_ring,
    b_ring,
    c_tiles,
    filled,
    drained,
    turn,
    LAYOUT: gl.constexpr,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr,
    RASTER: gl.constexpr,
    CONSUMERS: gl.constexpr,
    SLICES: gl.constexpr,
):
    consume(
        base, groups, tiles, a_ring, b_ring, c_tiles, filled, drained, turn,
        LAYOUT, BLOCK_M, BLOCK_N, BLOCK_K, STAGES, RASTER, CONSUMERS, SLICES, 0,
    )  # fmt: skip


@gluon.jit
def consume_second(
    base,
    groups,
    tiles,
    a_ring,
    b_ring,
    c_tiles,
    filled,
    drained,
    turn,
    LAYOUT: gl.constexpr,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr,
    RASTER: gl.constexpr,
    CONSUMERS: gl.constexpr,
    SLICES: gl.constexpr,
):
    consume(
        base, groups, tiles, a_ring, b_ring, c_tiles, filled, drained, turn,
        LAYOUT, BLOCK_M, BLOCK_N, BLOCK_K, STAGES, RASTER, CONSUMERS, SLICES, 1,
    )  # fmt: skip


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

    CONSUMERS 1: all warps on one tile; 2: two groups of warps on alternate tiles.
    """
    A_SHAPE: gl.constexpr = [BLOCK_M, BLOCK_K] if LAYOUT[0] == "n" else [BLOCK_K, BLOCK_M]
    B_SHAPE: gl.constexpr = [BLOCK_K, BLOCK_N] if LAYOUT[1] == "n" else [BLOCK_N, BLOCK_K]
    SWIZZLED: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    base = list_address(problems, BY_VALUE)
    a_ring = gl.allocate_shared_memory(DTYPE, [STAGES, A_SHAPE[0], A_SHAPE[1]], SWIZZLED)
    b_ring = gl.allocate_shared_memory(DTYPE, [STAGES, B_SHAPE[0], B_SHAPE[1]], SWIZZLED)
    c_tiles = gl.allocate_shared_memory(DTYPE, [CONSUMERS, BLOCK_M, BLOCK_N // SLICES], SWIZZLED)
    filled = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    drained = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    turn = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(filled.index(i), count=1)
        mbarrier.init(drained.index(i), count=1)
    for i in gl.static_range(2):
        mbarrier.init(turn.index(i), count=1)
    if CONSUMERS == 1:
        gl.warp_specialize(
            [
                (consume_first, (base, groups, tiles, a_ring, b_ring, c_tiles, filled, drained, turn, LAYOUT, BLOCK_M, BLOCK_N, BLOCK_K, STAGES, RASTER, CONSUMERS, SLICES)),
                (produce, (base, groups, tiles, a_ring, b_ring, c_tiles, filled, drained, turn, LAYOUT, BLOCK_M, BLOCK_N, BLOCK_K, STAGES, RASTER, CONSUMERS, SLICES)),
            ],
            [1],
            [40],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (consume_first, (base, groups, tiles, a_ring, b_ring, c_tiles, filled, drained, turn, LAYOUT, BLOCK_M, BLOCK_N, BLOCK_K, STAGES, RASTER, CONSUMERS, SLICES)),
                (consume_second, (base, groups, tiles, a_ring, b_ring, c_tiles, filled, drained, turn, LAYOUT, BLOCK_M, BLOCK_N, BLOCK_K, STAGES, RASTER, CONSUMERS, SLICES)),
                (produce, (base, groups, tiles, a_ring, b_ring, c_tiles, filled, drained, turn, LAYOUT, BLOCK_M, BLOCK_N, BLOCK_K, STAGES, RASTER, CONSUMERS, SLICES)),
            ],
            [4, 1],
            [232, 40],
        )  # fmt: skip
