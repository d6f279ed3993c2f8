"""Addresses of rows that a kernel's arguments give as integers, with what ALIGNED guarantees of them."""

import triton
import triton.language as tl


@triton.jit
def typed_pointer(address, DTYPE: tl.constexpr, ALIGNED: tl.constexpr):
    pointer = address.to(tl.pointer_type(DTYPE))
    return tl.multiple_of(pointer, 16) if ALIGNED else pointer


@triton.jit
def whole(stride, ALIGNED: tl.constexpr):
    """A stride of which ALIGNED guarantees that 8 divides it."""
    return stride // 8 * 8 if ALIGNED else stride


@triton.jit
def rows_to_write(rows, ends, groups):
    """`rows`, or where the groups' ends are given, which rise, no more than the last one."""
    wanted = rows
    if ends.to(tl.int64) != 0:
        wanted = tl.minimum(rows, tl.load(ends.to(tl.pointer_type(tl.int32)) + groups - 1))
    return wanted
