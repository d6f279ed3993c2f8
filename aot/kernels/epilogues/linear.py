"""The linear epilogue: C = scaled sums, plus the group's row of biases where there is one.

`Linear` is what the pipeline of the `hopper` kernels asks of an epilogue; it is in Gluon:

    SUMS_PER_OUTPUT                columns of sums for one column of C: 1 here, 2 for a gated epilogue
    HALVES                         whether the tile's columns are two runs of B's, gate and up
    apply(work, group, sums, n)    the values of C, float32. `sums` are scaled; `n` is the column where they start
    zeros(work, sums)              values in the shape and layout of `apply`, from sums that are zeros

aot/kernels/pointer/bias.py is the same for the pointer kernels.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def add_group_bias(work, group, sums, n):
    if work.schedule.has_bias(group):
        # With SWAP_AB a tile is summed as its transpose: its columns lie along dimension 0.
        M_DIM: gl.constexpr = 1 if work.tiling.SWAP_AB else 0
        columns = n + gl.arange(0, sums.shape[1 - M_DIM], gl.SliceLayout(M_DIM, sums.type.layout))
        bias = work.schedule.bias_row(group, work.tiling.OUT)
        bias += columns.to(gl.int64) * work.schedule.bias_stride(group)
        sums += gl.load(bias, mask=columns < group.N, other=0.0).to(gl.float32).expand_dims(M_DIM)
    return sums


@gluon.aggregate
class Linear:
    SUMS_PER_OUTPUT: gl.constexpr = 1
    HALVES: gl.constexpr = False

    @gluon.jit
    def apply(self, work, group, sums, n):
        if work.schedule.HAS_BIAS:
            sums = add_group_bias(work, group, sums, n)
        return sums

    @gluon.jit
    def zeros(self, work, sums):
        return sums
