"""What the warps of a CTA of `hopper` and `hopper_ragged` share."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier


@gluon.aggregate
class Work:
    """The groups, the ring of A and B steps, output tiles, barriers, the tiling."""

    base: gl.tensor  # the list, or the only record
    groups: gl.tensor
    rows: gl.tensor  # of a ragged matrix; a list has its sizes in the records
    columns: gl.tensor
    depth: gl.tensor
    offs: gl.tensor
    uploaded: gl.tensor  # whether the list was written to memory, which may have held another one before
    a_ring: gl.shared_memory_descriptor  # [STAGES, ...], a step of A each
    b_ring: gl.shared_memory_descriptor
    c_tiles: gl.shared_memory_descriptor  # [1 or 2, rows of a consumer group's tile, BLOCK_N / SLICES]
    filled: gl.shared_memory_descriptor  # a barrier for each stage: its bytes have come
    drained: gl.shared_memory_descriptor  # its products are done
    turn: gl.shared_memory_descriptor  # for each of two consumer groups that take turns: the tensor cores are its own
    RAGGED: gl.constexpr
    SCALING: gl.constexpr
    LAYOUT: gl.constexpr
    BLOCK_M: gl.constexpr
    BLOCK_N: gl.constexpr
    BLOCK_K: gl.constexpr
    STAGES: gl.constexpr
    RASTER: gl.constexpr
    CONSUMERS: gl.constexpr
    SPLIT: gl.constexpr
    SLICES: gl.constexpr
    AHEAD: gl.constexpr  # a tile is written out while the next one is multiplied
    SWAPPED: gl.constexpr  # a tile is summed as its transpose: of the first factor, products take 64 rows at least


@gluon.jit
def make_work(
    base, groups, rows, columns, depth, offs, uploaded,
    DTYPE: gl.constexpr, OUT: gl.constexpr, RAGGED: gl.constexpr, SCALING: gl.constexpr,
    LAYOUT: gl.constexpr,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr,
    RASTER: gl.constexpr, CONSUMERS: gl.constexpr, SPLIT: gl.constexpr, SLICES: gl.constexpr,
):  # fmt: skip
    A_SHAPE: gl.constexpr = [BLOCK_M, BLOCK_K] if LAYOUT[0] == "n" else [BLOCK_K, BLOCK_M]
    B_SHAPE: gl.constexpr = [BLOCK_K, BLOCK_N] if LAYOUT[1] == "n" else [BLOCK_N, BLOCK_K]
    SWIZZLED: gl.constexpr = gl.NVMMASharedLayout(128, DTYPE.primitive_bitwidth, 2)
    SWIZZLED_OUT: gl.constexpr = gl.NVMMASharedLayout(128, OUT.primitive_bitwidth, 2)
    AHEAD: gl.constexpr = CONSUMERS == 1 and SLICES == 4
    SWAPPED: gl.constexpr = BLOCK_M < 64
    BUFFERS: gl.constexpr = 2 if AHEAD else CONSUMERS
    WARPS: gl.constexpr = gl.num_warps() * (CONSUMERS if SPLIT == 2 else 1)
    TAKES_TURNS: gl.constexpr = CONSUMERS == 2 and SPLIT == 1
    filled = mbarrier.allocate_mbarrier(batch=STAGES)
    # Shared memory that held a barrier must not be used for anything else (PTX, mbarrier.inval): a context switch may
    # bring the barrier back. The compiler gives away what is no longer used, so no barrier is made that nobody uses.
    if TAKES_TURNS:
        turn = mbarrier.allocate_mbarrier(batch=2)
        for i in gl.static_range(2):
            mbarrier.init(turn.index(i), count=1)
    else:
        turn = filled
    work = Work(
        base, groups, rows, columns, depth, offs, uploaded,
        gl.allocate_shared_memory(DTYPE, [STAGES, A_SHAPE[0], A_SHAPE[1]], SWIZZLED),
        gl.allocate_shared_memory(DTYPE, [STAGES, B_SHAPE[0], B_SHAPE[1]], SWIZZLED),
        gl.allocate_shared_memory(OUT, [BUFFERS, BLOCK_M // SPLIT, BLOCK_N // SLICES], SWIZZLED_OUT),
        filled,
        mbarrier.allocate_mbarrier(batch=STAGES),
        turn,
        RAGGED, SCALING, LAYOUT, BLOCK_M, BLOCK_N, BLOCK_K, STAGES, RASTER, CONSUMERS, SPLIT, SLICES, AHEAD, SWAPPED,
    )  # fmt: skip
    for i in gl.static_range(STAGES):
        mbarrier.init(work.filled.index(i), count=1)
        mbarrier.init(work.drained.index(i), count=WARPS)
    return work


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
def steps_of(work, group):
    """BLOCK_K steps of a tile. A tile that is written out ahead has one for each slice: those past K are zeros."""
    steps = gl.cdiv(group.depth, work.BLOCK_K)
    if work.AHEAD:
        steps = gl.maximum(steps, work.SLICES)
    return steps
