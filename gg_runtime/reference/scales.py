"""Scales of `grouped_mm` by row and column, by block, or by block along a ragged K, on the CPU."""

import math
import sys
from typing import Any, NamedTuple

from ..frameworks import dtype_like
from .arithmetic import LARGEST_E4M3, is_torch, namespace

BLOCK = 128  # of K, and of N, that a scale is for
_SMALLEST = 2.0**-100  # a block whose largest magnitude is below becomes zeros


class Scales(NamedTuple):
    """Of rows [rows] and columns [E, N], or of blocks: [rows, K / 128] and [E, N / 128, K / 128], rounded up. Along a
    ragged K of blocks [M, blocks] and [blocks, N]."""

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


def k_blocks(size: int) -> int:
    """Of a group of `size` columns of a ragged K."""
    return -(-size // BLOCK)


def product_of_k_blocks(a: Any, b: Any, scales: Scales, first: int) -> Any:
    """a @ b for one group of a ragged K, whose blocks have the scales from `first` on; past the last ones, the last."""
    sums = a[:, :0] @ b[:0]
    for i in range(k_blocks(b.shape[0])):
        k = slice(i * BLOCK, (i + 1) * BLOCK)
        block = min(first + i, scales.b.shape[0] - 1)
        sums = sums + (a[:, k] @ b[k]) * (scales.a[:, block][:, None] * scales.b[block][None, :])
    return sums


def quantize_1x128(x: Any) -> tuple[Any, Any]:
    """As the kernel: float32, and a product with 448 by the largest magnitude, for torch tensors and ml_dtypes arrays.

    Raises:
        TypeError: a framework whose arrays have no float8_e4m3fn.
    """
    import numpy as typed_numpy

    numpy: Any = typed_numpy
    torch = sys.modules["torch"] if is_torch(x) else None
    rows, columns = x.shape
    blocks = -(-columns // BLOCK)
    values = numpy.zeros((rows, blocks * BLOCK), numpy.float32)
    values[:, :columns] = x.astype("float32") if torch is None else x.detach().float().numpy()
    values = values.reshape(rows, blocks, BLOCK)
    largest = numpy.fmax.reduce(numpy.abs(values), axis=2, initial=0)
    is_small = largest < _SMALLEST
    with numpy.errstate(divide="ignore", invalid="ignore"):
        scales = numpy.where(is_small, numpy.float32(1), largest / numpy.float32(LARGEST_E4M3))
        inverse = numpy.where(is_small, numpy.float32(0), numpy.float32(LARGEST_E4M3) / largest)
        scaled = (values * inverse[:, :, None]).reshape(rows, blocks * BLOCK)[:, :columns]
    if torch is not None:
        return torch.from_numpy(scaled.copy()).to(torch.float8_e4m3fn), torch.from_numpy(scales)
    arrays = namespace(x)
    return arrays.asarray(scaled.astype(dtype_like(x, "float8_e4m3fn"))), arrays.asarray(scales)
