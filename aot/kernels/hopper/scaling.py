"""Scale modes of the `hopper` kernels: a policy for none, and for one scale of A and one of each group's B.

Scales of rows and of blocks come with the k-tiles: scale_ring.py and k_scales.py.

    PROMOTES                  whether the tensor cores sum one k-tile only
    apply(work, group, sums)  what is the same for all elements of a tile

Promotion, as in DeepGEMM and section 3.3.2 of the DeepSeek-V3 report: wgmma keeps about 14 bits of the sums of fp8
products. So the tensor cores start each k-tile from zero, and the CUDA cores add its sums to float32 accumulators.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.aggregate
class NoScaling:
    PROMOTES: gl.constexpr

    @gluon.jit
    def apply(self, work, group, sums):
        return sums


@gluon.aggregate
class TensorScaling:
    """One float32 for A and one for each group's B. They are the same for all of K, so sums are scaled at the end."""

    PROMOTES: gl.constexpr

    @gluon.jit
    def apply(self, work, group, sums):
        sums *= work.schedule.scale_a(group)
        sums *= work.schedule.scale_b(group)
        return sums


@gluon.jit
def make_scaling(SCALING: gl.constexpr, DTYPE: gl.constexpr):
    """The policy of a scale mode. Sums of 8-bit inputs are promoted whatever their scales."""
    PROMOTES: gl.constexpr = DTYPE.primitive_bitwidth == 8
    if SCALING == "tensor":
        return TensorScaling(PROMOTES)
    else:
        gl.static_assert(SCALING == "none", "aot/kernels/hopper/scaling.py has no such scale mode")
        return NoScaling(PROMOTES)
