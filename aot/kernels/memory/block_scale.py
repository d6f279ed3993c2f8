"""The scale of a block of e4m3 values, as quantize_1x128 has it."""

import triton
import triton.language as tl

LARGEST = tl.constexpr(448.0)  # of e4m3
SMALLEST = tl.constexpr(2.0**-100)  # a block whose largest is below becomes zeros with the scale 1


@triton.jit
def scales_of(values):
    """(scale, what the values are multiplied by) of each row of float32 `values`."""
    largest = tl.max(tl.abs(values), axis=1)
    is_small = (largest < SMALLEST) | (largest != largest)  # or nothing but NaN
    most = tl.full(largest.shape, LARGEST, tl.float32)
    scale = tl.where(is_small, 1.0, tl.math.div_rn(largest, most))
    inverse = tl.where(is_small, 0.0, tl.math.div_rn(most, largest))
    return scale, inverse
