"""TMA copies with five coordinates, as boxes.py has them with fewer: rows counted from behind, and the group."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .boxes import _load


@gluon.jit
def load_5d(descriptor, x, y, z, w, v, barrier, buffer, offset):
    """A box to `buffer` + `offset` bytes, the innermost coordinate first. Its bytes arrive on `barrier`."""
    gl.inline_asm(_load(5, "", None), "l,r,r,r,r,r,r,r,r", [descriptor, x, y, z, w, v, barrier, buffer, offset])


@gluon.jit
def store_5d(descriptor, x, y, z, w, v, buffer, offset, leader):
    """A box from `buffer` + `offset` bytes to global memory, issued by thread `leader` of the CTA."""
    gl.inline_asm(
        "{ .reg .pred elected; .reg .b32 thread, source; mov.u32 thread, %tid.x; setp.eq.u32 elected, thread, $8; "
        "add.u32 source, $6, $7; "
        "@elected cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group"
        "[$0, {$1, $2, $3, $4, $5}], [source]; }",
        "l,r,r,r,r,r,r,r,r",
        [descriptor, x, y, z, w, v, buffer, offset, leader],
    )
