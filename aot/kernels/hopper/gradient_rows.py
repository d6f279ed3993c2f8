"""What the way back through an activation needs of a tile's rows, by the warps that gather."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ..records import gradient_descriptors
from .gather import word_now


@gluon.jit
def load_weights(record, first, count, rows: gl.constexpr, LAYOUT: gl.constexpr):
    """(weights, slots) of `rows` rows from `first` on: 0 and -1 where `count` rows are passed, and where a row has no
    slot."""
    row = gl.arange(0, rows, LAYOUT)
    slots = word_now(record + gradient_descriptors.slot).to(gl.pointer_type(gl.int32)) + first
    slot = gl.load(slots + row, mask=row < count, other=-1)
    known = (slot >= 0) & (slot < word_now(record + gradient_descriptors.entries))
    weights = word_now(record + gradient_descriptors.weights)
    kind = word_now(record + gradient_descriptors.weight_kind)
    if kind == 0:
        weight = gl.load(weights.to(gl.pointer_type(gl.float32)) + slot, mask=known, other=0.0)
    elif kind == 1:
        weight = gl.load(weights.to(gl.pointer_type(gl.float16)) + slot, mask=known, other=0.0).to(gl.float32)
    else:
        weight = gl.load(weights.to(gl.pointer_type(gl.bfloat16)) + slot, mask=known, other=0.0).to(gl.float32)
    weight *= word_now(record + gradient_descriptors.factor_bits).to(gl.int32).to(gl.float32, bitcast=True)
    return weight, gl.where(known, slot, -1)


@gluon.jit
def prepare_rows(work, group, m, n, turn):
    """The weights of a tile's rows, and where their sums go: to the gradients of the weights where one tile has all
    columns, else to a row of sums for each tile of columns."""
    threads: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    first, left = group.start + m, group.stop - group.start - m
    weights, places = load_weights(group.record, first, left, work.tiling.BLOCK_M, threads)
    row = gl.arange(0, work.tiling.BLOCK_M, threads)
    if work.schedule.N > work.tiling.BLOCK_N:
        places = gl.where(row < left, n // work.tiling.BLOCK_N * work.schedule.total_M + first + row, -1)
    wanted = word_now(group.record + gradient_descriptors.row_sums) != 0
    work.epilogue.row_weights.index(turn).store(weights)
    work.epilogue.row_places.index(turn).store(gl.where(wanted, places, -1))


@gluon.jit
def arrive(barrier):
    """Each thread arrives."""
    gl.inline_asm("mbarrier.arrive.shared::cta.b64 _, [$0];", "r", [barrier])
