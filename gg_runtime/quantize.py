"""Activations in float8_e4m3fn, with the scales that `grouped_mm` takes for blocks."""

from typing import Any

from . import _C, by_torch, reference
from ._C import OnCpu
from .arrays import ArrayT


@by_torch.traced_by_torch
def quantize_1x128(x: ArrayT) -> tuple[ArrayT, Any]:
    """(q, scales) with x = q * scales of each 128 columns. One kernel launch, which reads x once.

    scales[r, b] is the largest magnitude in row r of the columns from 128 b on, by 448, the largest float8_e4m3fn;
    q is x by its scale, rounded once. A block whose largest magnitude is below 2**-100 has the scale 1 and zeros. NaN
    stays where it is; an infinity makes its block's scale infinite and becomes NaN.

        q, scale_a = gg_runtime.quantize_1x128(x)
        y = gg_runtime.grouped_mm(q, w.mT, offs=offs, scale_a=scale_a, scale_b=w_scales)

    Args:
        x: [rows, K], float16 or bfloat16, any strides, on a GPU of compute capability 9.0 or the CPU.

    Returns:
        q, [rows, K] in float8_e4m3fn, and scales, float32 [rows, K / 128], rounded up; both new and row-major.

    Raises:
        ValueError, TypeError: another shape or dtype, something that is no array, or a framework without
            float8_e4m3fn.
        RuntimeError: x requires grad while torch records gradients, which would be lost.
        UnsupportedError, ArtifactError, CudaError: as `grouped_mm` raises them.
    """
    made = _C.quantize_1x128(x)
    if made is ...:
        return by_torch.traced().quantize_1x128(x)
    if type(made) is OnCpu:
        return reference.quantize_1x128(x)
    return made
