"""Products of two fp8 types: A in e5m2, as gradients are, and B in e4m3, as weights are.

A kernel is compiled for the dtype of A; what B has with it is `of_b` of aot/spec/abi.py.
"""

import triton
import triton.language as tl


@triton.constexpr_function
def dtype_of_b(DTYPE):
    """Of B where A has DTYPE."""
    return tl.float8e4nv if DTYPE == tl.float8e5 else DTYPE
