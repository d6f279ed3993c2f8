"""Factors that are a number or lie on the device."""

import triton
import triton.language as tl


@triton.jit
def load_factor(at, bits):
    """The float32 at the address `at`, or where that is 0 the one with these bits."""
    stated = bits.to(tl.int32).to(tl.float32, bitcast=True)
    return tl.load(at.to(tl.int64).to(tl.pointer_type(tl.float32)), mask=at != 0, other=stated)
