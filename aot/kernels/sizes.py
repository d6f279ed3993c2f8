"""Arithmetic of sizes up to the last ones below 2**31."""

import triton
import triton.language as tl


@triton.jit
def ceil_div(size, BLOCK: tl.constexpr):
    """`size` / BLOCK, rounded up; tl.cdiv overflows on the last sizes."""
    return size // BLOCK + tl.minimum(size % BLOCK, 1)
