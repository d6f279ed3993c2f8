"""The gated epilogue: C = activation(gate, up), each with its bias, of two columns of B for one of C.

The tile's columns of gate are its left half and those of up its right half, wherever they lie in B: TMA brings them
there (hopper/load.py). Each thread then has both of a pair, and nothing is moved.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ..hopper.store import halves
from .gating import activate_tile, zeros_like_tile


@gluon.jit
def split(work, sums):
    """(gate, up)"""
    if work.tiling.SWAP_AB:
        return sums.reshape([2, sums.shape[0] // 2, sums.shape[1]]).permute((1, 2, 0)).split()
    else:
        return halves(sums)


@gluon.aggregate
class Gated:
    """The interface is in linear.py."""

    SUMS_PER_OUTPUT: gl.constexpr = 2
    HALVES: gl.constexpr = True

    @gluon.jit
    def apply(self, work, group, sums, n):
        gate, up = split(work, sums)
        return activate_tile(work, group, gate, up, n // 2)

    @gluon.jit
    def zeros(self, work, sums):
        gate, _ = split(work, sums)
        return zeros_like_tile(work, gate)
