"""TMA copies with five coordinates, as boxes.py has them with fewer: rows counted from behind, and the group."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .boxes import _load, _store


@gluon.jit
def load_5d(descriptor, x, y, z, w, v, barrier, buffer, offset):
    """A box to `buffer` + `offset` bytes, the innermost coordinate first. Its bytes arrive on `barrier`."""
    gl.inline_asm(_load(5, "", None), "l,r,r,r,r,r,r,r,r", [descriptor, x, y, z, w, v, barrier, buffer, offset])


@gluon.jit
def store_5d(descriptor, x, y, z, w, v, buffer, offset, leader):
    """As store_2d of boxes.py."""
    if leader is None:
        gl.inline_asm(_store(5, True), "l,r,r,r,r,r,r,r", [descriptor, x, y, z, w, v, buffer, offset])
    else:
        gl.inline_asm(_store(5, False), "l,r,r,r,r,r,r,r,r", [descriptor, x, y, z, w, v, buffer, offset, leader])
