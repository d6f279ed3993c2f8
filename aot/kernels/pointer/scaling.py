"""Scale modes of the pointer kernels: what a tile's sums are multiplied by, for each of SCALINGS in aot/spec/abi.py."""

import triton
import triton.language as tl


@triton.jit
def load_scale(address, index, exists, SCALING: tl.constexpr):
    """Element `index` of the float32 array at `address`; 1 where the address is 0 or the scale does not exist."""
    if SCALING == "tensor":
        pointer = address.to(tl.pointer_type(tl.float32)) + index
        return tl.load(pointer, mask=(address != 0) & exists, other=1.0)
    else:
        tl.static_assert(SCALING == "none", "aot/kernels/pointer/scaling.py has no such scale mode")
        return 1.0


@triton.jit
def apply_scaling(sums, scale_a, scale_b, SCALING: tl.constexpr):
    if SCALING == "tensor":
        sums *= scale_a * scale_b
    return sums
