"""Back through a gated activation: from dh, the gradient of its weighted output, to that of its input.

A tile is done in parts of its columns. A part of the pre-activation z comes in two boxes, gate's columns and up's.
Their gradients take their places, the weighted output goes to a third, and TMA stores all three from there. When that
happens is up to the schedule: hopper/gradient.py or hopper/gradient_deferred.py.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared

from ..hopper.boxes import commit_stores, store_4d
from ..hopper.record import word
from ..hopper.schedules.ragged_m import LAST_ROW
from ..records import gradient_descriptors
from .activations import sigmoid


@gluon.constexpr_function
def _wait(pending):
    return f"cp.async.bulk.wait_group.read {pending};"


@gluon.jit
def wait_until_read(PENDING: gl.constexpr):
    """Until all but the last PENDING bulk groups of this thread are read. In tma.store_wait all threads meet."""
    gl.inline_asm(_wait(PENDING))


@gluon.jit
def go_back(dh, gate, up, weight):
    """(gradient of gate, of up, the weighted output, the output times dh), of float32 values. A row's sum of the last
    is the gradient of its weight."""
    share = sigmoid(gate)
    by_up = gate * share
    slope = share + by_up * (1.0 - share)
    value = by_up * up
    products = value * dh
    dh *= weight
    return dh * (slope * up), dh * by_up, weight * value, products


@gluon.jit
def store_boxes(coord, column, gate, up, h, LEADER: gl.constexpr):
    """Three boxes, once all threads have written them, by thread LEADER."""
    record, last = coord.record, gl.to_tensor(LAST_ROW)
    row_of_h = gl.where(word(record + gradient_descriptors.writes_h) != 0, coord.m, LAST_ROW)
    fence_async_shared()
    gl.barrier()  # the compiler does not see that the stores in PTX read the boxes
    store_4d(record + gradient_descriptors.dz, column, coord.m, last, coord.stop, gate, 0, LEADER)
    store_4d(record + gradient_descriptors.dz_up, column, coord.m, last, coord.stop, up, 0, LEADER)
    store_4d(record + gradient_descriptors.c, column, row_of_h, last, coord.stop, h, 0, LEADER)
    commit_stores(LEADER)


@gluon.jit
def store_row_sums(coord, sums, places):
    factor = word(coord.record + gradient_descriptors.factor_bits).to(gl.int32).to(gl.float32, bitcast=True)
    row_sums = word(coord.record + gradient_descriptors.row_sums).to(gl.pointer_type(gl.float32))
    gl.store(row_sums + places, factor * sums, mask=places >= 0)


@gluon.aggregate
class GatedGradient:
    """What the rows of a tile need, of some tiles in turns; and the fields of linear.py that the producer asks for."""

    row_weights: gl.shared_memory_descriptor  # [tiles, BLOCK_M] float32
    row_places: gl.shared_memory_descriptor  # [tiles, BLOCK_M] int32: where the sum of a row goes, or -1
    SUMS_PER_OUTPUT: gl.constexpr = 1
    HALVES: gl.constexpr = False


@gluon.jit
def make_gated_gradient(ROWS: gl.constexpr, TILES: gl.constexpr):
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    return GatedGradient(
        gl.allocate_shared_memory(gl.float32, [TILES, ROWS], PLAIN),
        gl.allocate_shared_memory(gl.int32, [TILES, ROWS], PLAIN),
    )
