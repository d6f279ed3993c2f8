"""Scales of `grouped_mm` by row and column, or by block, on the CPU."""

import math
from typing import Any, NamedTuple

BLOCK = 128  # of K, and of N, that a scale is for


class Scales(NamedTuple):
    """Of rows [rows] and columns [E, N], or of blocks: [rows, K / 128] and [E, N / 128, K / 128], rounded up."""

    a: Any
    b: Any


def scales_of(scale_a: Any, scale_b: Any) -> Scales | None:
    """None where there is one for A at most, and one for each group's B."""
    given = [scale for scale in (scale_a, scale_b) if scale is not None]
    if scale_b is None or scale_b.ndim < 2 or all(math.prod(scale.shape) == 1 for scale in given):
        return None
    return Scales(scale_a, scale_b)


def scaled_product(a: Any, b: Any, of_a: Any, of_b: Any, arrays: Any) -> Any:
    """a @ b for one group, all in float32: `of_a` [M] and `of_b` [N], or [M, K / 128] and [N / 128, K / 128]."""
    if of_b.ndim == 1:
        return (a @ b) * (of_a[:, None] * of_b[None, :])
    columns = [_block_column(a, b[:, n * BLOCK : (n + 1) * BLOCK], of_a, of_b[n]) for n in range(of_b.shape[0])]
    return arrays.concatenate(columns, axis=1) if columns else a @ b


def _block_column(a: Any, b: Any, of_a: Any, of_b: Any) -> Any:
    """The products of 128 columns of b."""
    sums = a[:, :0] @ b[:0]
    for block in range(of_b.shape[0]):
        k = slice(block * BLOCK, (block + 1) * BLOCK)
        sums = sums + (a[:, k] @ b[k]) * (of_a[:, block] * of_b[block])[:, None]
    return sums
