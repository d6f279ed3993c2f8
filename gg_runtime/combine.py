"""The rows of each token's experts, summed."""

from . import _C, by_torch, reference
from ._C import OnCpu
from .arrays import Array, ArrayT


@by_torch.traced_by_torch
def combine(
    y: ArrayT,
    inverse: Array,
    weights: Array | None = None,
    *,
    add: ArrayT | None = None,
    scale: float = 1.0,
    out: ArrayT | None = None,
) -> ArrayT:
    """out[t] = add[t] + scale * (weights[t, 0] * y[inverse[t, 0]] + weights[t, 1] * y[inverse[t, 1]] + ...).

    One kernel launch. The products are summed in float32 in the order of a token's slots, without atomics, and rounded
    once: the result is the same, bit for bit, in every run, and a token's does not depend on the others. A slot whose
    place is not in [0, rows) adds nothing: neither a row nor its weight is read for it, so that NaN in them stays out.

    Args:
        y: [rows, H], float16 or bfloat16, the last dimension of stride 1: what the experts gave, at the places of a
            `Routing`.
        inverse: [tokens, k], int32, contiguous: the place of each slot, as `route` gives it.
        weights: [tokens, k], float32, float16 or bfloat16, contiguous; 1 by default.
        add: [tokens, H] of y's dtype, the last dimension of stride 1: what a shared expert gave. May be `out`.
        scale: a factor of all sums, `routed_scaling_factor` in models; `add` is not scaled.
        out: [tokens, H] of y's dtype to write, the last dimension of stride 1; a new array by default.

    Arrays are those that `group_gemm` takes, on a GPU or the CPU, with any alignment. The launch goes to the current
    stream of y's framework and device, waits for nothing, and may be captured in a CUDA graph. Gradients are not
    recorded: an input that requires one is refused.

    Returns:
        the sums, [tokens, H]; `out` if it was given.

    Raises:
        ValueError: shapes, strides or devices that do not fit, or an output that shares memory, is read-only or
            requires grad.
        TypeError: an unsupported or mixed dtype, or something that is no array.
        RuntimeError: an input requires grad while torch records gradients, which would be lost.
        UnsupportedError, ArtifactError, CudaError: as `grouped_mm` raises them.
    """
    sums = _C.combine(y, inverse, weights, add, out, scale)
    if sums is ...:
        return by_torch.traced().combine(y, inverse, weights, add=add, scale=scale, out=out)
    if type(sums) is OnCpu:
        return reference.combine(y, inverse, weights, add, scale, out, sums.out_dtype)
    return sums
