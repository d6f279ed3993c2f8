"""One output tile through pointers and cp.async: what `basic` and `basic_ragged` share.

Rows and columns past the edge are replaced by the tile's first, so that the main loop needs no mask; what they compute
is masked out of the store. The tail of K is one masked step after the loop. Edges are sought within the tile: an index
overflows only where it is masked out, however close to 2**31 a size comes.
"""

import triton
import triton.language as tl


@triton.jit
def _clamped(size, BLOCK: tl.constexpr, ALIGNED: tl.constexpr):
    """BLOCK indices, those from `size` on replaced by 0. ALIGNED promises that 8 divides `size`."""
    index = tl.arange(0, BLOCK)
    index = tl.where(index < size, index, 0)
    return tl.max_contiguous(tl.multiple_of(index, 8), 8) if ALIGNED else index


@triton.jit
def product(
    a,
    b,
    row,
    column,
    rows_left,
    columns_left,
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
    """float32 sums of the tile at (row, column) of A @ B. Strides that LAYOUT makes 1 are not looked at."""
    if LAYOUT != "strided":
        if LAYOUT[0] == "n":
            a_col = 1
        else:
            a_row = 1
        if LAYOUT[1] == "n":
            b_col = 1
        else:
            b_row = 1
    # wgmma keeps fp8 sums in few bits: every 128 products, or every step, they are added to true float32 ones.
    EXACT_AFTER: tl.constexpr = BLOCK_K if BLOCK_K < 128 else 128
    rows = (row + _clamped(rows_left, BLOCK_M, ALIGNED and LAYOUT[0] == "t")).to(tl.int64)
    columns = (column + _clamped(columns_left, BLOCK_N, ALIGNED and LAYOUT[1] == "n")).to(tl.int64)
    depth = tl.arange(0, BLOCK_K)
    a_block = a + rows[:, None] * a_row + depth[None, :].to(tl.int64) * a_col
    b_block = b + depth[:, None].to(tl.int64) * b_row + columns[None, :] * b_col
    sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    steps = K // BLOCK_K
    for _ in range(0, steps):
        sums = tl.dot(tl.load(a_block), tl.load(b_block), sums, max_num_imprecise_acc=EXACT_AFTER)
        a_block += BLOCK_K * a_col
        b_block += BLOCK_K * b_row
    rest = K - steps * BLOCK_K
    if rest > 0:
        a_tail = tl.load(a_block, mask=depth[None, :] < rest, other=0.0)
        b_tail = tl.load(b_block, mask=depth[:, None] < rest, other=0.0)
        sums = tl.dot(a_tail, b_tail, sums, max_num_imprecise_acc=EXACT_AFTER)
    return sums


@triton.jit
def scale(address, index, wanted):
    """The float32 number `index` behind `address`; 1 where that is 0 or the scale is not `wanted`."""
    pointer = address.to(tl.pointer_type(tl.float32)) + index
    return tl.load(pointer, mask=(address != 0) & wanted, other=1.0)


@triton.jit
def store(c, values, row, column, rows_left, columns_left, c_row, c_col, LAYOUT: tl.constexpr):
    """Writes the tile at (row, column) of C, as far as rows and columns are left."""
    if LAYOUT != "strided":
        c_col = 1
    rows = tl.arange(0, values.shape[0])[:, None]
    columns = tl.arange(0, values.shape[1])[None, :]
    block = c + (row + rows).to(tl.int64) * c_row + (column + columns).to(tl.int64) * c_col
    tl.store(block, values.to(c.dtype.element_ty), mask=(rows < rows_left) & (columns < columns_left))
