"""Scale modes of the `hopper` kernels: a policy for each of SCALINGS in aot/spec/abi.py, chosen by `make_scaling`.

    PROMOTES                            whether the tensor cores sum one k-tile only
    BLOCKS                              whether the sums of each k-tile have scales: hopper/block_scales.py
    prefetch(work, group, m, n, i)      of the producer, at k-tile `i` of a tile: brings scales to L2
    scale_tile(work, group, m, n, sums) multiplies the sums of all k-tiles by scales of rows and columns
    apply(work, group, sums)            what is the same for all elements of a tile

Promotion, as in DeepGEMM and section 3.3.2 of the DeepSeek-V3 report: wgmma keeps about 14 bits of the sums of fp8
products. So the tensor cores start each k-tile from zero, and the CUDA cores add its sums to float32 accumulators.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ..records import scaled_descriptors
from .record import word

BLOCK = gl.constexpr(128)  # of K and of N that a scale is for
_SECTOR = gl.constexpr(8)  # scales in 32 bytes, which memory brings at once


@gluon.aggregate
class NoScaling:
    PROMOTES: gl.constexpr
    BLOCKS: gl.constexpr = False

    @gluon.jit
    def prefetch(self, work, group, m, n, i):
        pass

    @gluon.jit
    def scale_tile(self, work, group, m, n, sums):
        return sums

    @gluon.jit
    def apply(self, work, group, sums):
        return sums


@gluon.aggregate
class TensorScaling:
    """One float32 for A and one for each group's B. They are the same for all of K, so sums are scaled at the end."""

    PROMOTES: gl.constexpr
    BLOCKS: gl.constexpr = False

    @gluon.jit
    def prefetch(self, work, group, m, n, i):
        pass

    @gluon.jit
    def scale_tile(self, work, group, m, n, sums):
        return sums

    @gluon.jit
    def apply(self, work, group, sums):
        sums *= work.schedule.scale_a(group)
        sums *= work.schedule.scale_b(group)
        return sums


@gluon.jit
def of_rows(work, group, m, row):
    """Where the scales of rows of the tile lie: of the first k-tile. `m` is the tile's row in its group.

    Rows past the group's end, which are stored nowhere, take its last row's: no other memory is read.
    """
    row = gl.minimum(m + row, work.schedule.M(group) - 1)
    pointer = word(group.record + scaled_descriptors.scale_a).to(gl.pointer_type(gl.float32))
    return pointer + work.schedule.scale_offset(group, row)


@gluon.jit
def of_group(work, group):
    """Where the scales of the group's B lie. The rows behind the last group take its: they have no products."""
    index = gl.minimum(group.index, work.schedule.groups - 1).to(gl.int64)
    pointer = word(group.record + scaled_descriptors.scale_b).to(gl.pointer_type(gl.float32))
    return pointer + index * word(group.record + scaled_descriptors.scale_b_step)


@gluon.jit
def of_columns(work, group, index):
    """Where the scales `index` along N of the group's B lie."""
    return of_group(work, group) + index.to(gl.int64) * word(group.record + scaled_descriptors.scale_b_n)


@gluon.jit
def prefetch(pointer):
    """Brings what lies there to L2."""
    gl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [pointer], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.aggregate
class RowScaling:
    """A float32 for each row of A, and for each column of each group's B. With ragged M and stacks.

    They are loaded when the sums are there, as in registers they would make the main loop spill; L2 has them by then.
    """

    PROMOTES: gl.constexpr
    BLOCKS: gl.constexpr = False

    @gluon.jit
    def prefetch(self, work, group, m, n, i):
        if i == 0:
            lanes: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
            prefetch(of_rows(work, group, m, gl.arange(0, work.tiling.BLOCK_M, lanes)))
            prefetch(of_columns(work, group, gl.minimum(n + gl.arange(0, work.tiling.BLOCK_N, lanes), group.N - 1)))

    @gluon.jit
    def scale_tile(self, work, group, m, n, sums):
        """Not the rows behind the last group: they are zeros, whatever the scales."""
        M_DIM: gl.constexpr = 1 if work.tiling.SWAP_AB else 0
        ROWS: gl.constexpr = gl.SliceLayout(1 - M_DIM, sums.type.layout)
        COLUMNS: gl.constexpr = gl.SliceLayout(M_DIM, sums.type.layout)
        exists = group.index < work.schedule.groups
        rows = of_rows(work, group, m, gl.arange(0, work.tiling.CONSUMER_M, ROWS))
        column = n + gl.arange(0, work.tiling.BLOCK_N, COLUMNS)
        of_row = gl.load(rows, mask=exists, other=1.0)
        of_column = gl.load(of_columns(work, group, column), mask=exists & (column < group.N), other=1.0)
        return sums * (of_row.expand_dims(1 - M_DIM) * of_column.expand_dims(M_DIM))

    @gluon.jit
    def apply(self, work, group, sums):
        return sums


@gluon.aggregate
class BlockScaling:
    """A float32 for each 1x128 of A and 128x128 of each group's B: hopper/block_scales.py. For the same."""

    PROMOTES: gl.constexpr
    BLOCKS: gl.constexpr = True

    @gluon.jit
    def prefetch(self, work, group, m, n, i):
        """Where the scales of a row lie one behind the other, a sector of memory has those of _SECTOR k-tiles."""
        step = word(group.record + scaled_descriptors.scale_a_k)
        if (step != 1) | (i % _SECTOR == 0):
            lanes: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
            prefetch(of_rows(work, group, m, gl.arange(0, work.tiling.BLOCK_M, lanes)) + i * step)
            prefetch(of_columns(work, group, n // BLOCK) + i * word(group.record + scaled_descriptors.scale_b_k))

    @gluon.jit
    def scale_tile(self, work, group, m, n, sums):
        return sums

    @gluon.jit
    def apply(self, work, group, sums):
        return sums


@gluon.jit
def make_scaling(SCALING: gl.constexpr, DTYPE: gl.constexpr):
    """The policy of a scale mode. Sums of 8-bit inputs are promoted whatever their scales."""
    PROMOTES: gl.constexpr = DTYPE.primitive_bitwidth == 8
    if SCALING == "tensor":
        return TensorScaling(PROMOTES)
    elif SCALING == "row":
        return RowScaling(PROMOTES)
    elif SCALING == "block":
        return BlockScaling(PROMOTES)
    else:
        gl.static_assert(SCALING == "none", "aot/kernels/hopper/scaling.py has no such scale mode")
        return NoScaling(PROMOTES)
