"""Scale modes of the `hopper` kernels: a policy for each of SCALINGS in aot/spec/abi.py, chosen by `make_scaling`.

    PROMOTES                            whether the tensor cores sum one k-tile only
    BLOCKS                              whether the sums of each k-tile have scales: hopper/block_scales.py
    load_tile(work, group, m, n, sums)  the scales that `scale_tile` needs of a tile. It is called before the products
                                        start, so that its loads are in flight together with them
    scale_tile(work, sums, scales)      multiplies by them the sums of all k-tiles
    apply(work, group, sums)            what is the same for all elements of a tile

Promotion, as in DeepGEMM and section 3.3.2 of the DeepSeek-V3 report: wgmma keeps about 14 bits of the sums of fp8
products. So the tensor cores start each k-tile from zero, and the CUDA cores add its sums to float32 accumulators.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ..records import scaled_descriptors
from .record import word


@gluon.aggregate
class NoScaling:
    PROMOTES: gl.constexpr
    BLOCKS: gl.constexpr = False

    @gluon.jit
    def load_tile(self, work, group, m, n, sums):
        return None

    @gluon.jit
    def scale_tile(self, work, sums, scales):
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
    def load_tile(self, work, group, m, n, sums):
        return None

    @gluon.jit
    def scale_tile(self, work, sums, scales):
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
    row = gl.minimum(m + row, group.stop - group.start - 1)
    pointer = word(group.record + scaled_descriptors.scale_a).to(gl.pointer_type(gl.float32))
    return pointer + (group.start + row).to(gl.int64) * word(group.record + scaled_descriptors.scale_a_row)


@gluon.jit
def of_group(work, group):
    """Where the scales of the group's B lie. The rows behind the last group take its: they have no products."""
    index = gl.minimum(group.index, work.schedule.groups - 1).to(gl.int64)
    pointer = word(group.record + scaled_descriptors.scale_b).to(gl.pointer_type(gl.float32))
    return pointer + index * word(group.record + scaled_descriptors.scale_b_step)


@gluon.aggregate
class RowScaling:
    """A float32 for each row of A, and for each column of each group's B. With ragged M only."""

    PROMOTES: gl.constexpr
    BLOCKS: gl.constexpr = False

    @gluon.jit
    def load_tile(self, work, group, m, n, sums):
        """Of rows, and of columns, one a thread: in the layout of the sums they are 32, and others spill.

        All are 1 for the rows behind the last group, which are zeros whatever the scales.
        """
        COLUMNS: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
        exists = group.index < work.schedule.groups
        ROWS: gl.constexpr = gl.SliceLayout(0 if work.tiling.SWAP_AB else 1, sums.type.layout)
        rows = of_rows(work, group, m, gl.arange(0, work.tiling.CONSUMER_M, ROWS))
        columns = n + gl.arange(0, work.tiling.BLOCK_N, COLUMNS)
        step = word(group.record + scaled_descriptors.scale_b_n)
        pointers = of_group(work, group) + columns.to(gl.int64) * step
        # Not multiplied here, or the products would wait for the loads.
        return gl.load(rows, mask=exists, other=1.0), gl.load(pointers, mask=exists & (columns < group.N), other=1.0)

    @gluon.jit
    def scale_tile(self, work, sums, scales):
        M_DIM: gl.constexpr = 1 if work.tiling.SWAP_AB else 0
        columns = gl.convert_layout(scales[1], gl.SliceLayout(M_DIM, sums.type.layout))
        return sums * (scales[0].expand_dims(1 - M_DIM) * columns.expand_dims(M_DIM))

    @gluon.jit
    def apply(self, work, group, sums):
        return sums


@gluon.aggregate
class BlockScaling:
    """A float32 for each 1x128 of A and 128x128 of each group's B: hopper/block_scales.py. With ragged M only."""

    PROMOTES: gl.constexpr
    BLOCKS: gl.constexpr = True

    @gluon.jit
    def load_tile(self, work, group, m, n, sums):
        return None

    @gluon.jit
    def scale_tile(self, work, sums, scales):
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
