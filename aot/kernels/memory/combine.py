"""`combine`: the rows of a token's experts, each with its weight, summed in the order of the token's slots; sm_80 and
later.

Each program writes COLUMNS columns of one token. It reads four rows at a time, so that their latencies overlap, and
adds one after the other: a sum in float32 whose order never changes. A slot whose place is outside of [0, rows) adds
nothing: neither its row nor its weight is read.
"""

import triton
import triton.language as tl

from ..addressing import typed_pointer, whole
from ..sizes import ceil_div


@triton.jit
def load_weight(weights, weight_kind, index, kept):
    """Weights `index` as float32, 0 where not `kept`. `weight_kind`: 0 for float32, 1 for float16, 2 for bfloat16."""
    if weight_kind == 0:
        weight = tl.load(weights.to(tl.pointer_type(tl.float32)) + index, mask=kept, other=0.0)
    elif weight_kind == 1:
        weight = tl.load(weights.to(tl.pointer_type(tl.float16)) + index, mask=kept, other=0.0).to(tl.float32)
    else:
        weight = tl.load(weights.to(tl.pointer_type(tl.bfloat16)) + index, mask=kept, other=0.0).to(tl.float32)
    return weight


@triton.jit
def _weight_or_one(weights, weight_kind, index, kept):
    if weights == 0:
        weight = tl.full((), 1.0, tl.float32)
    else:
        weight = load_weight(weights, weight_kind, index, kept)
    return weight


@triton.jit
def combine(
    y,
    y_row,
    inverse,
    weights,
    added,
    added_row,
    out,
    out_row,
    rows,
    top_k,
    columns,
    weight_kind,
    factor_bits,
    DTYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """out[t] = added[t] + factor * sum over j of weights[t, j] * y[inverse[t, j]]; `added` may be 0.

    `inverse` and `weights` are [tokens, top_k] without gaps. Rows of y, `added` and `out` are `columns` elements in a
    row, with strides in elements. ALIGNED: pointers on 16 bytes, and 8 divides strides and `columns`. `factor_bits`:
    those of a float32.
    """
    blocks = ceil_div(columns, COLUMNS)
    t = (tl.program_id(0) // blocks).to(tl.int64)
    first = tl.program_id(0) % blocks * COLUMNS
    column = first + tl.arange(0, COLUMNS)
    inside = tl.arange(0, COLUMNS) < whole(columns, ALIGNED) - first
    y_row, added_row, out_row = whole(y_row, ALIGNED), whole(added_row, ALIGNED), whole(out_row, ALIGNED)
    source = typed_pointer(y, DTYPE, ALIGNED)
    places = inverse.to(tl.pointer_type(tl.int32)) + t * top_k
    sums = tl.zeros((COLUMNS,), tl.float32)
    for j in range(0, top_k, 4):
        values = ()
        factors = ()
        for i in tl.static_range(4):
            place = tl.load(places + j + i, mask=j + i < top_k, other=-1)
            kept = (place >= 0) & (place < rows)
            values += (tl.load(source + place.to(tl.int64) * y_row + column, mask=inside & kept, other=0.0),)
            factors += (_weight_or_one(weights, weight_kind, t * top_k + j + i, kept),)
        for i in tl.static_range(4):
            sums += factors[i] * values[i].to(tl.float32)
    sums *= tl.cast(factor_bits, tl.float32, bitcast=True)
    if added != 0:
        base = typed_pointer(added, DTYPE, ALIGNED) + t * added_row
        sums += tl.load(base + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(typed_pointer(out, DTYPE, ALIGNED) + t * out_row + column, sums.to(DTYPE), mask=inside)
