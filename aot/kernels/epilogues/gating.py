"""What the gated epilogues share: biases and the activation of gate and up, once a tile's sums are split into them."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ..hopper.record import word
from ..hopper.store import from_halves, halves
from ..records import gated_descriptors
from .activations import activate


@gluon.jit
def load_biases(work, group, address, columns, M_DIM: gl.constexpr):
    """The group's biases from `address` on, float32."""
    record = group.record
    index = group.index.to(gl.int64) * word(record + gated_descriptors.bias_row)
    index += columns.to(gl.int64) * word(record + gated_descriptors.bias_col)
    pointer = address.to(gl.pointer_type(work.tiling.OUT)) + index
    return gl.load(pointer, mask=columns < group.N // 2, other=0.0).to(gl.float32).expand_dims(M_DIM)


@gluon.jit
def activate_columns(work, group, gate, up, first):
    """The columns of C from `first` on."""
    # With SWAP_AB a tile is summed as its transpose: its columns lie along dimension 0.
    M_DIM: gl.constexpr = 1 if work.tiling.SWAP_AB else 0
    columns = first + gl.arange(0, gate.shape[1 - M_DIM], gl.SliceLayout(M_DIM, gate.type.layout))
    record = group.record
    if work.schedule.has_bias(group):
        gate += load_biases(work, group, word(record + gated_descriptors.bias), columns, M_DIM)
        up += load_biases(work, group, word(record + gated_descriptors.bias_up), columns, M_DIM)
    return activate(record, gate, up)


@gluon.jit
def activate_tile(work, group, gate, up, first):
    """As activate_columns, half by half: the biases of all columns at once would make other registers spill."""
    if work.tiling.SWAP_AB:
        return activate_columns(work, group, gate, up, first)
    else:
        left_gate, right_gate = halves(gate)
        left_up, right_up = halves(up)
        left = activate_columns(work, group, left_gate, left_up, first)
        right = activate_columns(work, group, right_gate, right_up, first + left.shape[1])
        return from_halves(left, right)


@gluon.jit
def zeros_like_tile(work, gate):
    """`gate` in the layout that activate_tile returns."""
    if work.tiling.SWAP_AB:
        return gate
    else:
        left, right = halves(gate)
        return from_halves(left, right)
