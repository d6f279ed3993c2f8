"""The gated epilogue that quantizes: C = activation(gate, up) in e4m3, with a float32 scale for each 128 of a row.

A tile has 128 columns of gate and the same of up: a whole block of C. Each thread has both of a pair, and the four
lanes that share a row find its largest value. Gate and up are not rounded before. Activations are those of
gated_kept.py.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ..hopper.record import word
from ..hopper.scale_ring import BLOCK
from ..hopper.store import store_subtile
from ..memory.block_scale import QUOTIENTS, SMALLEST
from ..records import quantized_descriptors
from .gated_kept import activate


@gluon.jit
def scales_of(values):
    """(scale, what the values are multiplied by) of each row, as memory/block_scale.py has them."""
    largest = gl.max(gl.abs(values), 1)
    is_small = (largest < SMALLEST) | (largest != largest)  # or nothing but NaN
    is_infinite = largest == float("inf")
    scale, inverse = gl.inline_asm_elementwise(
        QUOTIENTS, "=f,=f,f", [largest], dtype=(gl.float32, gl.float32), is_pure=True, pack=1
    )
    scale = gl.where(is_small, 1.0, gl.where(is_infinite, largest, scale))
    return scale, gl.where(is_small | is_infinite, 0.0, inverse)


@gluon.jit
def store_scales(group, m, n, scale):
    """Of the rows of the tile at (m, n) of C that are the group's."""
    row = m + gl.arange(0, scale.shape[0], scale.type.layout)
    record = group.record
    place = (group.start + row).to(gl.int64) * word(record + quantized_descriptors.out_scale_row)
    place += (n // BLOCK).to(gl.int64) * word(record + quantized_descriptors.out_scale_k)
    pointer = word(record + quantized_descriptors.out_scales).to(gl.pointer_type(gl.float32)) + place
    gl.store(pointer, scale, mask=row < group.stop - group.start)


@gluon.aggregate
class GatedQuantized:
    """What hopper/promotion.py asks of an epilogue: the fields of linear.py, and `store`."""

    SUMS_PER_OUTPUT: gl.constexpr = 2
    HALVES: gl.constexpr = True

    @gluon.jit
    def store(self, work, group, gate, up, m, n, ME: gl.constexpr):
        """All that becomes of the sums of a tile, whose first element is (m, n) of C."""
        values = activate(group.record, gate, up)
        scale, inverse = scales_of(values)
        store_scales(group, m, n, scale)
        coord = work.schedule.store_coord(group, m, n)
        store_subtile(work, coord, values * inverse.expand_dims(1), 0, ME, ME, 0)
