"""The gated epilogues: C = activation(gate, up), each with its bias, of two columns of B for one of C.

`gated` has the tile's columns of gate in its left half and those of up in its right half, wherever they lie in B: TMA
brings them there (hopper/load.py). `gated_pairs` has them in turns, as B with N contiguous and interleaved columns does."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ..hopper.record import word
from ..hopper.store import from_halves, halves
from ..records import gated_descriptors
from .activations import activate


@gluon.aggregate
class Gated:
    """The interface is in linear.py."""

    SUMS_PER_OUTPUT: gl.constexpr
    HALVES: gl.constexpr  # gate and up are halves of the tile's columns; else neighbours

    @gluon.jit
    def split(self, work, sums):
        """(gate, up). Each thread has both of a pair: nothing is moved."""
        COLUMNS: gl.constexpr = work.tiling.BLOCK_N // 2
        if work.tiling.SWAP_AB:
            gl.static_assert(self.HALVES, "neighbouring rows of a transposed tile are in different threads")
            return sums.reshape([2, COLUMNS, sums.shape[1]]).permute((1, 2, 0)).split()
        elif self.HALVES:
            return sums.reshape([sums.shape[0], 2, COLUMNS]).permute((0, 2, 1)).split()
        else:
            return sums.reshape([sums.shape[0], COLUMNS, 2]).split()

    @gluon.jit
    def bias(self, work, group, address, columns, M_DIM: gl.constexpr):
        """The group's biases from `address` on, float32."""
        record = group.record
        index = group.index.to(gl.int64) * word(record + gated_descriptors.bias_row)
        index += columns.to(gl.int64) * word(record + gated_descriptors.bias_col)
        pointer = address.to(gl.pointer_type(work.tiling.OUT)) + index
        return gl.load(pointer, mask=columns < group.N // 2, other=0.0).to(gl.float32).expand_dims(M_DIM)

    @gluon.jit
    def of_columns(self, work, group, gate, up, first):
        """The activation of the columns of C from `first` on."""
        # With SWAP_AB a tile is summed as its transpose: its columns lie along dimension 0.
        M_DIM: gl.constexpr = 1 if work.tiling.SWAP_AB else 0
        columns = first + gl.arange(0, gate.shape[1 - M_DIM], gl.SliceLayout(M_DIM, gate.type.layout))
        record = group.record
        if work.schedule.has_bias(group):
            gate += self.bias(work, group, word(record + gated_descriptors.bias), columns, M_DIM)
            up += self.bias(work, group, word(record + gated_descriptors.bias_up), columns, M_DIM)
        return activate(gate, up, word(record + gated_descriptors.activation).to(gl.int32))

    @gluon.jit
    def apply(self, work, group, sums, n):
        gate, up = self.split(work, sums)
        if work.tiling.SWAP_AB:
            return self.of_columns(work, group, gate, up, n // 2)
        else:
            # Half by half, or the biases of all columns are in registers at once and make others spill.
            COLUMNS: gl.constexpr = work.tiling.BLOCK_N // 4
            left_gate, right_gate = halves(gate)
            left_up, right_up = halves(up)
            left = self.of_columns(work, group, left_gate, left_up, n // 2)
            right = self.of_columns(work, group, right_gate, right_up, n // 2 + COLUMNS)
            return from_halves(left, right)

    @gluon.jit
    def zeros(self, work, sums):
        gate, up = self.split(work, sums)
        if work.tiling.SWAP_AB:
            return gate
        else:
            left, right = halves(gate)
            return from_halves(left, right)
