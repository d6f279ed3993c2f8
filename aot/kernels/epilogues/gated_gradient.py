"""Back through a gated activation: from a tile of dh, the gradient of its weighted output, to that of its input.

A tile is done in parts of 64 columns. Each part has a slot of the ring of k-tiles: hopper/gradient.py loads gate's
columns of the pre-activation z into the slot's A and up's into the first half of its B. Their gradients take their
places, the weighted output goes to the second half of B, and TMA stores all three from there.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from ..hopper.boxes import commit_stores, store_4d
from ..hopper.record import word
from ..hopper.schedules.ragged_m import LAST_ROW
from ..hopper.store import halves
from ..hopper.work import release
from ..records import gradient_descriptors
from .activations import sigmoid

PART = gl.constexpr(64)  # columns


@gluon.constexpr_function
def _wait(pending):
    return f"cp.async.bulk.wait_group.read {pending};"


@gluon.jit
def wait_until_read(PENDING: gl.constexpr):
    """Until all but the last PENDING bulk groups of this thread are read. In tma.store_wait all threads meet."""
    gl.inline_asm(_wait(PENDING))


@gluon.jit
def store_boxes(work, coord, slot, COLUMN: gl.constexpr):
    """The three boxes of a slot, once all threads have written them."""
    record, last = coord.record, gl.to_tensor(LAST_ROW)
    column = coord.n + COLUMN
    gate, up, h = work.a_ring.index(slot), work.c_buffers.index(2 * slot), work.c_buffers.index(2 * slot + 1)
    row_of_h = gl.where(word(record + gradient_descriptors.writes_h) != 0, coord.m, LAST_ROW)
    fence_async_shared()
    gl.barrier()  # the compiler does not see that the stores in PTX read the slot
    store_4d(record + gradient_descriptors.dz, column, coord.m, last, coord.stop, gate, 0, 0)
    store_4d(record + gradient_descriptors.dz_up, column, coord.m, last, coord.stop, up, 0, 0)
    store_4d(record + gradient_descriptors.c, column, row_of_h, last, coord.stop, h, 0, 0)
    commit_stores(0)


@gluon.jit
def go_back(work, coord, dh, weights, k_tile, COLUMN: gl.constexpr):
    """All that becomes of a part of dh, with the slot of `k_tile`. Returns the row sums of the activation times dh."""
    STAGES: gl.constexpr = work.tiling.STAGES
    slot = k_tile % STAGES
    mbarrier.wait(work.full.index(slot), k_tile // STAGES & 1)
    of_gate, of_up, of_h = work.a_ring.index(slot), work.c_buffers.index(2 * slot), work.c_buffers.index(2 * slot + 1)
    gate = of_gate.load(dh.type.layout).to(gl.float32)
    up = of_up.load(dh.type.layout).to(gl.float32)
    share = sigmoid(gate)
    by_up = gate * share
    slope = share + by_up * (1.0 - share)
    value = by_up * up
    sums = gl.sum(value * dh, 1)
    weight = weights.expand_dims(1)
    dh *= weight
    of_gate.store((dh * (slope * up)).to(of_gate.dtype))
    of_up.store((dh * by_up).to(of_up.dtype))
    of_h.store((weight * value).to(of_h.dtype))
    store_boxes(work, coord, slot, COLUMN)
    # The slot before is released once its boxes are read. The thread that stored them arrives for its warp.
    wait_until_read(1)
    release(work, (k_tile + STAGES - 1) % STAGES, COLUMN > 0)
    return sums


@gluon.jit
def quarter(tile, INDEX: gl.constexpr):
    left, right = halves(tile)
    first, second = halves(left if INDEX < 2 else right)
    return first if INDEX % 2 == 0 else second


@gluon.aggregate
class GatedGradient:
    """What hopper/gradient.py asks of an epilogue: the fields of linear.py, and `store`."""

    row_weights: gl.shared_memory_descriptor  # [2, BLOCK_M] float32, of two tiles in turns
    row_places: gl.shared_memory_descriptor  # [2, BLOCK_M] int32: where the sum of a row goes, or -1
    SUMS_PER_OUTPUT: gl.constexpr = 1
    HALVES: gl.constexpr = False

    @gluon.jit
    def store(self, work, coord, tile, k_tile, count):
        """All that becomes of a tile of dh, the CTA's `count`-th. Its parts have the slots from that of `k_tile` on,
        of which the last is not released."""
        STAGES: gl.constexpr = work.tiling.STAGES
        layout: gl.constexpr = gl.SliceLayout(1, quarter(tile, 0).type.layout)
        mbarrier.wait(work.full.index(k_tile % STAGES), k_tile // STAGES & 1)
        weights = self.row_weights.index(count % 2).load(layout)
        sums = gl.zeros([work.tiling.BLOCK_M], gl.float32, layout)
        for i in gl.static_range(work.tiling.BLOCK_N // PART):
            sums += go_back(work, coord, quarter(tile, i), weights, k_tile + i, i * PART)
        place = self.row_places.index(count % 2).load(layout)
        factor = word(coord.record + gradient_descriptors.factor_bits).to(gl.int32).to(gl.float32, bitcast=True)
        row_sums = word(coord.record + gradient_descriptors.row_sums).to(gl.pointer_type(gl.float32))
        gl.store(row_sums + place, factor * sums, mask=place >= 0)
