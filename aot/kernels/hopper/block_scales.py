"""Scales of blocks, 1x128 of A and 128x128 of B, for the `hopper` kernels with ragged M: a k-tile is a block of K.

A consumer thread has the scales of its rows in registers, and asks for those of the next k-tile while the tensor cores
are at this one. The producer, which is ahead by the stages of the ring, has brought them to L2 by then.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ..records import scaled_descriptors
from .record import word
from .scaling import of_group, of_rows

BLOCK = gl.constexpr(128)
_SECTOR = gl.constexpr(8)  # scales that memory brings at once, of 32 bytes


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
        of_columns(work, group, n),
        word(group.record + scaled_descriptors.scale_a_k),
        word(group.record + scaled_descriptors.scale_b_k),
    )


@gluon.jit
def of_columns(work, group, n):
    """Where the scale of the columns from `n` on lies, of the first k-tile."""
    return of_group(work, group) + (n // BLOCK).to(gl.int64) * word(group.record + scaled_descriptors.scale_b_n)


@gluon.jit
def add_scaled(work, sums, part, scales):
    """The sums and those of a k-tile, times its scales."""
    return sums + part * (scales[0] * scales[1]).expand_dims(0 if work.tiling.SWAP_AB else 1)


@gluon.jit
def prefetch(pointer):
    """Brings what lies there to L2."""
    gl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [pointer], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def prefetch_scales(work, group, m, n, i):
    """For the producer: the scales of the tile's k-tile `i`, on their way before the consumers ask for them.

    Where those of a row lie one behind the other, a sector of memory has those of _SECTOR k-tiles.
    """
    step = word(group.record + scaled_descriptors.scale_a_k)
    if (step != 1) | (i % _SECTOR == 0):
        lanes: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
        prefetch(of_rows(work, group, m, gl.arange(0, work.tiling.BLOCK_M, lanes)) + i * step)
        prefetch(of_columns(work, group, n) + i * word(group.record + scaled_descriptors.scale_b_k))
