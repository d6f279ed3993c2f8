"""`add_row_sums`: gradients of the weights of rows, from the row sums that each tile of columns has left; sm_80 and
later.

Each program has BLOCK_M rows. The sums of a row are added in the order of the columns, in float32: the same bits in
every run.
"""

import triton
import triton.language as tl

from ..addressing import rows_to_write


@triton.jit
def add_row_sums(
    y,
    weight_index,
    dweights,
    ends,
    groups,
    rows,
    parts,
    entries,
    factor_bits,
    BLOCK_M: tl.constexpr,
):
    """dweights[weight_index[r]] = factor * (the sum over p of y[p, r], by rising p).

    y is float32 [parts, rows] without gaps, `dweights` float32 [entries]. A row whose index is not in [0, entries) has
    no gradient. `ends`: as in `activate`.
    """
    first = tl.program_id(0).to(tl.int64) * BLOCK_M
    wanted = rows_to_write(rows, ends, groups)
    if first < wanted:
        row = first + tl.arange(0, BLOCK_M)
        inside = row < wanted
        slot = tl.load(weight_index.to(tl.pointer_type(tl.int32)) + row, mask=inside, other=-1)
        source = y.to(tl.pointer_type(tl.float32)) + row
        sums = tl.zeros((BLOCK_M,), tl.float32)
        for _ in range(0, parts):
            sums += tl.load(source, mask=inside, other=0.0)
            source += rows
        factor = tl.cast(factor_bits, tl.float32, bitcast=True)
        known = (slot >= 0) & (slot < entries)
        tl.store(dweights.to(tl.pointer_type(tl.float32)) + slot, factor * sums, mask=known)
