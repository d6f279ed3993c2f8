"""Scales of blocks, 1x128 of A and 128x128 of B, for the `hopper` kernels with ragged M: a k-tile is a block of K.

A consumer thread has the scales of its rows in registers, and asks for those of the next k-tile while the tensor cores
are at this one. The producer, which is ahead by the stages of the ring, has brought them to L2 by then (`prefetch` of
BlockScaling).
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ..records import scaled_descriptors
from .record import word
from .scaling import BLOCK, of_columns, of_rows


@gluon.aggregate
class BlockScales:
    """Where the scales of a k-tile lie, and how far it is to those of the next one."""

    a: gl.tensor  # of each row
    b: gl.tensor  # of all columns of the tile
    a_step: gl.tensor
    b_step: gl.tensor

    @gluon.jit
    def load(self):
        return gl.load(self.a), gl.load(self.b)

    @gluon.jit
    def step(self, exists):
        """Those of the next k-tile, or where that does not exist the same ones."""
        steps = gl.to_tensor(exists).to(gl.int64)
        return BlockScales(self.a + steps * self.a_step, self.b + steps * self.b_step, self.a_step, self.b_step)


@gluon.jit
def scales_of_tile(work, group, m, n, sums):
    """Of the first k-tile of the tile at (m, n)."""
    gl.static_assert(work.tiling.BLOCK_K == BLOCK and work.tiling.BLOCK_N <= BLOCK)
    ROWS: gl.constexpr = gl.SliceLayout(0 if work.tiling.SWAP_AB else 1, sums.type.layout)
    return BlockScales(
        of_rows(work, group, m, gl.arange(0, work.tiling.CONSUMER_M, ROWS)),
        of_columns(work, group, n // BLOCK),
        word(group.record + scaled_descriptors.scale_a_k),
        word(group.record + scaled_descriptors.scale_b_k),
    )


@gluon.jit
def add_scaled(work, sums, part, scales):
    """The sums and those of a k-tile, times its scales."""
    return sums + part * (scales[0] * scales[1]).expand_dims(0 if work.tiling.SWAP_AB else 1)
