"""The main loop of tiles of 192 and of 256 columns, in PTX: Triton's shapes are powers of two, and its products end in
the iteration of a loop that starts them.

Of 192 columns the sums are three tensors of 64, and a k-tile of B three panels, one behind the other in shared memory.
So one instruction reads A for half as many columns again as for 128, as DeepGEMM's do. Of 256 the sums are two tensors,
and the halves are multiplied one behind the other: the products of both at once would leave no registers. They may be
gate's columns and up's.

A k-tile's products start at the end of the iteration that promotes the one before it. The loop's branch, the wait for
the next slot and its descriptors then lie behind products in flight, for which the group waits anyway. Of a
promotion's instructions aot/build/yields.py has each fourth yield.

Scales of columns, one for each, are read while sums are promoted, when the k-tile's slot may be filled again: they have
two slots more than it (scale_slot of scale_ring.py).

Scales of a whole tile, which come with its last k-tile, or one for all: what was summed until then is scaled while the
last k-tile's products are in flight. Behind them two multiplications a sum took 3 to 6 % of the time where K is short.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .main_loop import MainLoop
from .scale_ring import LANE_WORDS
from .work import shared_address

WIDE = gl.constexpr(192)  # columns of a tile


@gluon.constexpr_function
def _main_loop(*given):
    return MainLoop(*given).text()


@gluon.jit
def multiply_wide(work, place, scales, factor, k_tiles, KEEPS_LAST: gl.constexpr, TYPE: gl.constexpr, ME: gl.constexpr):
    """A tile's sums, in three panels of TYPE or in two halves, times their scales.

    The first k-tile lies at `place`, and its scales in the slot `scales`. `factor`: the scale where there is one for
    all. KEEPS_LAST: the last k-tile's slot is not released.
    """
    tiling = work.tiling
    scaling = work.scaling
    BATCHES: gl.constexpr = 1 if tiling.B_PANELS > 1 else 2
    gl.static_assert(tiling.BLOCK_N == (WIDE if tiling.B_PANELS > 1 else 256) and tiling.CONSUMER_M == 64)
    gl.static_assert(tiling.LAYOUT == "nt" and tiling.BLOCK_K == 128, "rows of a k-tile have 128 bytes of K")
    # One number a thread. With the rows in the layout of sums, two of them, ptxas spills and leaves uniform registers.
    thread = gl.arange(0, 128, gl.BlockedLayout([1], [32], [4], [0]))
    row = ME * tiling.CONSUMER_M + thread // 32 * 16 + thread % 32 // 4
    SCALING: gl.constexpr = "block" if scaling.BLOCKS else "row" if scaling.LAST else "tensor"
    ROW_PITCH: gl.constexpr = 0 if SCALING == "tensor" else scaling.PITCH
    COLUMN_WORDS: gl.constexpr = 0 if SCALING == "tensor" else scaling.b.shape[1]
    gl.static_assert(COLUMN_WORDS <= 4 or COLUMN_WORDS >= WIDE, "scales of blocks: one a panel, or one a column")
    LOOP: gl.constexpr = _main_loop(
        tiling.BLOCK_N, BATCHES, tiling.BLOCK_M, tiling.BLOCK_K, tiling.STAGES, SCALING, scaling.SLOTS, ROW_PITCH,
        COLUMN_WORDS, KEEPS_LAST, work.schedule.GATHERS, tiling.CLUSTER, work.a_ring.dtype, work.b_ring.dtype,
    )  # fmt: skip
    if SCALING == "tensor":
        of_columns = work.full  # what is given is not read
    elif SCALING == "row":
        of_columns = shared_address(scaling.b) + thread % 4 * 8
    elif COLUMN_WORDS > 4:
        of_columns = shared_address(scaling.b) + thread % 4 * (4 * LANE_WORDS)
    else:
        of_columns = scaling.b
    rows_of_a = shared_address(work.a_ring) + ME * tiling.CONSUMER_M * tiling.BLOCK_K
    if SCALING == "tensor":
        of_rows = factor.to(gl.int32, bitcast=True)
    else:
        of_rows = shared_address(scaling.a) + row * 4
    given = (
        rows_of_a,
        work.b_ring,
        work.full,
        work.empty,
        of_rows,
        of_columns,
        place.slot,
        place.parity,
        scales,
        k_tiles,
    )
    if tiling.B_PANELS == 1:
        return gl.inline_asm(LOOP, ("=f", "=f", "r", "r", "r", "r", "r", "r", "r", "r", "r", "r"), given, (TYPE, TYPE))
    else:
        return gl.inline_asm(
            LOOP, ("=f", "=f", "=f", "r", "r", "r", "r", "r", "r", "r", "r", "r", "r"), given, (TYPE, TYPE, TYPE)
        )
