"""The ring of B where it has another dtype than A: ../mixed.py. wgmma takes two fp8 types."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ..mixed import dtype_of_b


@gluon.jit
def with_dtype_of_b(work):
    """`work` with the ring of B in B's own dtype, of as many bytes as A's."""
    DTYPE: gl.constexpr = work.tiling.DTYPE
    OF_B: gl.constexpr = dtype_of_b(DTYPE)
    if OF_B == DTYPE:
        return work
    else:
        ring = work.b_ring.reinterpret(OF_B)
        return gl.aggregate_replace(work, b_ring=ring)
