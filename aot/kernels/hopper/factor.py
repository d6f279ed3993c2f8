"""A factor of all sums, as a scale mode of hopper/scaling.py: `alpha` of the products with ragged K."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def load_factor(at, bits):
    """The float32 at the address `at`, or where that is 0 the one with these bits."""
    stated = bits.to(gl.int32).to(gl.float32, bitcast=True)
    return gl.load(at.to(gl.pointer_type(gl.float32)), mask=at != 0, other=stated)


@gluon.aggregate
class Factor:
    """The interface is in hopper/scaling.py."""

    alpha: gl.tensor
    PROMOTES: gl.constexpr = False

    @gluon.jit
    def apply(self, work, group, sums):
        # Most have none: a product for each of 128 sums a thread would show where tiles have few k-tiles.
        if self.alpha != 1.0:
            sums *= self.alpha
        return sums
