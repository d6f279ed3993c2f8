"""The gated epilogue that keeps the pre-activation: gate and up are stored too, rounded, each where its columns lie.

What is kept has the biases. A tile's columns come in one or two parts, of which gate, up and the output go through C's
buffers one after the other: no more than a part is rounded and activated at a time, or registers spill.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ..activation import OAI_SCALE, SWIGLU, SWIGLU_OAI
from ..hopper.boxes import commit_stores, store_4d
from ..hopper.record import word
from ..hopper.schedules.ragged_m import LAST_ROW
from ..hopper.store import fill, halves, store_subtile
from ..records import gated_descriptors, kept_descriptors
from .activations import gelu_tanh, limited, sigmoid
from .gated import split
from .gating import load_biases


@gluon.jit
def activate(record, gate, up):
    """As epilogues/activations.py has it, but for `geglu`: with erf, kernels that gather spill."""
    kind, gate, up = limited(record, gate, up)
    if kind == SWIGLU:
        values = gate * sigmoid(gate) * up
    elif kind == SWIGLU_OAI:
        values = gate * sigmoid(OAI_SCALE * gate) * (up + 1.0)
    else:
        values = gelu_tanh(gate) * up
    return values


@gluon.jit
def store_kept(work, coord, values, descriptor, OFFSET: gl.constexpr, BUFFER: gl.constexpr, IN_FLIGHT: gl.constexpr):
    """Columns of gate or up, as store_subtile of hopper/store.py stores those of C."""
    BOX: gl.constexpr = 1024 // work.tiling.OUT.primitive_bitwidth
    buffer = work.c_buffers.index(BUFFER)
    fill(buffer, values, IN_FLIGHT, work.tiling.SWAP_AB)
    for i in gl.static_range(buffer.shape[1] // BOX):
        column, place = coord.n + OFFSET + i * BOX, i * buffer.shape[0] * 128
        store_4d(descriptor, column, coord.m, gl.to_tensor(LAST_ROW), coord.stop, buffer, place, 0)
    commit_stores(0)


@gluon.jit
def store_part(work, group, coord, gate, up, PART: gl.constexpr):
    """The columns of C from those of `PART` parts on, and gate's and up's. Buffers take turns where there are two."""
    # With SWAP_AB a tile is summed as its transpose: its columns lie along dimension 0.
    M_DIM: gl.constexpr = 1 if work.tiling.SWAP_AB else 0
    OFFSET: gl.constexpr = PART * work.c_buffers.shape[2]
    BUFFERS: gl.constexpr = work.c_buffers.shape[0]
    FIRST: gl.constexpr = 3 * PART
    record = group.record
    if work.schedule.has_bias(group):
        columns = coord.n + OFFSET + gl.arange(0, gate.shape[1 - M_DIM], gl.SliceLayout(M_DIM, gate.type.layout))
        gate += load_biases(work, group, word(record + gated_descriptors.bias), columns, M_DIM)
        up += load_biases(work, group, word(record + gated_descriptors.bias_up), columns, M_DIM)
    store_kept(work, coord, gate, record + kept_descriptors.kept, OFFSET, FIRST % BUFFERS, BUFFERS - 1)
    store_kept(work, coord, up, record + kept_descriptors.kept_up, OFFSET, (FIRST + 1) % BUFFERS, BUFFERS - 1)
    values = activate(record, gate, up)
    store_subtile(work, coord, values, OFFSET, 0, (FIRST + 2) % BUFFERS, BUFFERS - 1)


@gluon.aggregate
class GatedKept:
    """What hopper/keep.py asks of an epilogue: the fields of linear.py, and `store`."""

    SUMS_PER_OUTPUT: gl.constexpr = 2
    HALVES: gl.constexpr = True

    @gluon.jit
    def store(self, work, group, coord, sums):
        """All that becomes of a tile's sums, which goes to `coord` in each of the outputs."""
        gate, up = split(work, sums)
        if work.tiling.EPILOGUE_SUBTILES == 1:
            store_part(work, group, coord, gate, up, 0)
        else:
            gl.static_assert(work.tiling.EPILOGUE_SUBTILES == 2, "a tile is stored in one part or in two")
            left_gate, right_gate = halves(gate)
            left_up, right_up = halves(up)
            store_part(work, group, coord, left_gate, left_up, 0)
            store_part(work, group, coord, right_gate, right_up, 1)
