"""One output tile through pointers and cp.async: the main loop and the store that `basic` and `basic_ragged` share.

Rows and columns past the edge are replaced by the tile's first, so the main loop needs no mask; what they compute is
masked out of the store. The tail of K is one masked k-tile after the loop. Edges are compared within the tile: an index
overflows only where it is masked out, however close to 2**31 a size comes.
"""

import triton
import triton.language as tl


@triton.jit
def _clamped(size, BLOCK: tl.constexpr, ALIGNED: tl.constexpr):
    """BLOCK indices, those from `size` on replaced by 0. ALIGNED guarantees that 8 divides `size`."""
    index = tl.arange(0, BLOCK)
    index = tl.where(index < size, index, 0)
    return tl.max_contiguous(tl.multiple_of(index, 8), 8) if ALIGNED else index


@triton.jit
def product(
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
    LAYOUT: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """float32 sums of the tile at (m, n) of A @ B. A stride that LAYOUT makes 1 is not read."""
    if LAYOUT != "strided":
        if LAYOUT[0] == "n":
            a_col = 1
        else:
            a_row = 1
        if LAYOUT[1] == "n":
            b_col = 1
        else:
            b_row = 1
    # wgmma keeps about 14 bits of fp8 sums. They are promoted to float32 every 128 products, or k-tile if it is less.
    PROMOTE_AFTER: tl.constexpr = BLOCK_K if BLOCK_K < 128 else 128
    rows = (m + _clamped(m_left, BLOCK_M, ALIGNED and LAYOUT[0] == "t")).to(tl.int64)
    columns = (n + _clamped(n_left, BLOCK_N, ALIGNED and LAYOUT[1] == "n")).to(tl.int64)
    k = tl.arange(0, BLOCK_K)
    a_block = a + rows[:, None] * a_row + k[None, :].to(tl.int64) * a_col
    b_block = b + k[:, None].to(tl.int64) * b_row + columns[None, :] * b_col
    sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    k_tiles = K // BLOCK_K
    for _ in range(0, k_tiles):
        sums = tl.dot(tl.load(a_block), tl.load(b_block), sums, max_num_imprecise_acc=PROMOTE_AFTER)
        a_block += BLOCK_K * a_col
        b_block += BLOCK_K * b_row
    k_left = K - k_tiles * BLOCK_K
    if k_left > 0:
        a_tail = tl.load(a_block, mask=k[None, :] < k_left, other=0.0)
        b_tail = tl.load(b_block, mask=k[:, None] < k_left, other=0.0)
        sums = tl.dot(a_tail, b_tail, sums, max_num_imprecise_acc=PROMOTE_AFTER)
    return sums


@triton.jit
def store(c, values, m, n, m_left, n_left, c_row, c_col, LAYOUT: tl.constexpr):
    """Writes the tile at (m, n) of C, as far as rows and columns are left."""
    if LAYOUT != "strided":
        c_col = 1
    rows = tl.arange(0, values.shape[0])[:, None]
    columns = tl.arange(0, values.shape[1])[None, :]
    block = c + (m + rows).to(tl.int64) * c_row + (n + columns).to(tl.int64) * c_col
    tl.store(block, values.to(c.dtype.element_ty), mask=(rows < m_left) & (columns < n_left))
