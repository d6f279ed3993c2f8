"""One tile of a gated product through pointers and cp.async: rows of A as they lie or by an index, gate and up of B.

Both are summed beside each other, of the same k-tile of A. As in tile.py, columns past the edge are replaced by the
tile's first; rows are not: those that are not to be read are zeros.
"""

import triton
import triton.language as tl

from ..activation import apply_activation
from ..sizes import ceil_div
from .bias import add_bias


@triton.jit
def load_rows(index, index_bytes, first, stop, source_rows, BLOCK_M: tl.constexpr):
    """The rows of A of a tile whose rows of C start at `first`, and which of them are to be read.

    `index`: where int32 or int64 are, or 0: then row r is row r. Rows from `stop` on and outside of A do not exist.
    """
    row = first + tl.arange(0, BLOCK_M)
    exists = tl.arange(0, BLOCK_M) < stop - first
    rows = row.to(tl.int64)
    if index != 0:
        if index_bytes == 8:
            rows = tl.load(index.to(tl.pointer_type(tl.int64)) + rows, mask=exists, other=-1)
        else:
            rows = tl.load(index.to(tl.pointer_type(tl.int32)) + rows, mask=exists, other=-1).to(tl.int64)
        exists = (rows >= 0) & (rows < source_rows)
    return tl.where(exists, rows, 0), exists


@triton.jit
def gated_sums(
    a,
    gate,
    up,
    rows,
    exists,
    n,
    n_left,
    K,
    a_row,
    b_row,
    b_col,
    LAYOUT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """float32 sums of gate and of up, COLUMNS columns each from `n` on. `gate` and `up` are matrices of one pitch.

    A has K contiguous; pointers lie on 16 bytes, and 8 divides `n_left`, K and the leading strides.
    """
    if LAYOUT[1] == "n":
        b_col = 1
    else:
        b_row = 1
    column = tl.arange(0, COLUMNS)
    column = tl.max_contiguous(tl.multiple_of(tl.where(column < n_left, column, 0), 8), 8)
    k = tl.arange(0, BLOCK_K)
    a_block = a + (rows * a_row)[:, None] + k[None, :]
    offsets = k[:, None].to(tl.int64) * b_row + (n + column).to(tl.int64)[None, :] * b_col
    gate_block, up_block = gate + offsets, up + offsets
    gate_sums, up_sums = tl.zeros((BLOCK_M, COLUMNS), tl.float32), tl.zeros((BLOCK_M, COLUMNS), tl.float32)
    for k_tile in range(0, ceil_div(K, BLOCK_K)):
        inside = k < K - k_tile * BLOCK_K
        a_tile = tl.load(a_block, mask=exists[:, None] & inside[None, :], other=0.0)
        gate_sums = tl.dot(a_tile, tl.load(gate_block, mask=inside[:, None], other=0.0), gate_sums)
        up_sums = tl.dot(a_tile, tl.load(up_block, mask=inside[:, None], other=0.0), up_sums)
        a_block += BLOCK_K
        gate_block += BLOCK_K * b_row
        up_block += BLOCK_K * b_row
    return gate_sums, up_sums


@triton.jit
def activate_sums(gate, up, bias, bias_up, bias_col, n, n_left, activation, OUT: tl.constexpr):
    """The values of C. The biases are addresses of the group's first, or 0. `activation`: as the record has it."""
    if bias != 0:
        gate = add_bias(gate, bias, bias_col, n, n_left, OUT)
        up = add_bias(up, bias_up, bias_col, n, n_left, OUT)
    return apply_activation(gate, up, activation.to(tl.int32), (activation >> 32).to(tl.int32))
