"""The bias of the pointer kernels, which aot/kernels/epilogues/linear.py is for `hopper`."""

import triton
import triton.language as tl


@triton.jit
def add_bias(sums, bias, stride, n, n_left, OUT: tl.constexpr):
    """Adds the biases from column `n` on, of which `n_left` exist, to each row. `bias` is the address of their row."""
    index = tl.arange(0, sums.shape[1])
    pointer = bias.to(tl.pointer_type(OUT)) + (n.to(tl.int64) + index) * stride
    return sums + tl.load(pointer, mask=index < n_left, other=0.0).to(tl.float32)[None, :]
