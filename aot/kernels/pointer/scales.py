"""Scales of rows and columns, and of blocks, for the pointer kernels. Addresses are bytes, strides are elements."""

import triton
import triton.language as tl

from ..sizes import ceil_div
from .tile import product

BLOCK = tl.constexpr(128)  # of K and of N that a scale is for


@triton.jit
def float32_at(address, index, inside):
    """Elements of a float32 array, 1 where not `inside`."""
    return tl.load(address.to(tl.pointer_type(tl.float32)) + index, mask=inside, other=1.0)


@triton.jit
def scale_rows(sums, scale_a, a_row, scale_b, b_n, m, n, m_left, n_left, exists):
    """The tile at (m, n), times the scale of each row at `scale_a` and of each column at `scale_b`. Without `exists`,
    as it is."""
    rows = tl.arange(0, sums.shape[0])
    columns = tl.arange(0, sums.shape[1])
    of_row = float32_at(scale_a, (m + rows).to(tl.int64) * a_row, rows < tl.where(exists, m_left, 0))
    of_column = float32_at(scale_b, (n + columns).to(tl.int64) * b_n, columns < tl.where(exists, n_left, 0))
    return sums * (of_row[:, None] * of_column[None, :])


@triton.jit
def product_of_blocks(
    a,
    b,
    m,
    n,
    m_left,
    n_left,
    K,
    a_row,
    a_col,
    b_row,
    b_col,
    scale_a,
    scale_a_row,
    scale_a_k,
    scale_b,
    scale_b_k,
    LAYOUT: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """As `product`, where the products of each 128 of K have scales: of each row at `scale_a`, one at `scale_b`."""
    rows = tl.arange(0, BLOCK_M)
    of_rows = (m + rows).to(tl.int64) * scale_a_row
    sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for i in range(0, ceil_div(K, BLOCK)):
        block = tl.cast(i, tl.int64)
        part = product(
            a + block * BLOCK * a_col, b + block * BLOCK * b_row, m, n, m_left, n_left,
            tl.minimum(K - i * BLOCK, BLOCK), a_row, a_col, b_row, b_col, LAYOUT, ALIGNED, BLOCK_M, BLOCK_N, BLOCK_K,
        )  # fmt: skip
        of_a = float32_at(scale_a, of_rows + block * scale_a_k, rows < m_left)
        sums += part * (of_a * float32_at(scale_b, block * scale_b_k, True))[:, None]
    return sums
