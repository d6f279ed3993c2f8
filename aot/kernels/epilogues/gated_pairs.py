"""The gated epilogue of columns in turns: even columns of a tile are gate's and odd ones up's, as B has them.

For a B with N contiguous, of which TMA cannot take every second column. Neighbours are in one thread, as wgmma's result
has them; the values of C are not, so that they go to shared memory one by one.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .gating import activate_tile, zeros_like_tile


@gluon.jit
def split(work, sums):
    """(gate, up)"""
    gl.static_assert(not work.tiling.SWAP_AB, "neighbouring rows of a transposed tile are in different threads")
    return sums.reshape([sums.shape[0], sums.shape[1] // 2, 2]).split()


@gluon.aggregate
class GatedPairs:
    """The interface is in linear.py."""

    SUMS_PER_OUTPUT: gl.constexpr = 2
    HALVES: gl.constexpr = False

    @gluon.jit
    def apply(self, work, group, sums, n):
        gate, up = split(work, sums)
        return activate_tile(work, group, gate, up, n // 2)

    @gluon.jit
    def zeros(self, work, sums):
        gate, _ = split(work, sums)
        return zeros_like_tile(work, gate)
