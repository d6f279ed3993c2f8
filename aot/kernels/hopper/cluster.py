"""Clusters of two CTAs: a pair of tiles, of which B is loaded once for both, or A.

The two row tiles of a pair read the same columns of B (tiling.py says which tiles are a pair). Without clusters L2
serves both at once while they keep step. Where the last row tile of a group has few rows it is done earlier, its CTA
runs ahead, and B comes twice. Clusters keep step, and read less: each CTA loads every second k-tile of what they share,
for both. So a slot of the ring is free when the consumers of both have done with it, and they arrive on both barriers.

Both CTAs take as many k-tiles, as their tiles are of one group. None ends before the other: aot/build/clusters.py has
them wait.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

BOTH = gl.constexpr(3)  # CTAs, a bit each


@gluon.jit
def load_in_cluster(work, group, m, n, k, slot, rank, shares_b):
    """As load_k_tile of load.py, by CTA `rank` of two. All that arrives on the slot's barrier is counted here, whoever
    loads it."""
    tiling = work.tiling
    gl.static_assert(tiling.LAYOUT == "nt" and not work.epilogue.HALVES, "rows and columns of contiguous K")
    gl.static_assert(tiling.STAGES % 2 == 0, "every second k-tile has every second slot")
    BITS: gl.constexpr = tiling.DTYPE.primitive_bitwidth
    BOX: gl.constexpr = 1024 // BITS
    barrier = work.full.index(slot)
    a, b = work.a_ring.index(slot), work.b_ring.index(slot * tiling.B_PANELS)
    mbarrier.expect(barrier, (tiling.BLOCK_M + tiling.BLOCK_N) * tiling.BLOCK_K * BITS // 8)
    loads_for_both = slot % 2 == rank
    for i in gl.static_range(tiling.BLOCK_K // BOX):
        of_a, of_b, inner = i * tiling.BLOCK_M * 128, i * tiling.BLOCK_N * 128, k + i * BOX
        if shares_b:  # a load for this CTA alone by that of both took 1 % longer
            work.schedule.load_a(group, inner, m, barrier, a, of_a)
            if loads_for_both:
                work.schedule.load_b_for(group, inner, n, barrier, b, of_b, BOTH)
        else:
            if loads_for_both:
                work.schedule.load_a_for(group, inner, m, barrier, a, of_a, BOTH)
            work.schedule.load_b(group, inner, n, barrier, b, of_b)
