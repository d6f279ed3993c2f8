"""Back through an activation: what the gradient of a layer of experts needs between two of its products."""

from typing import Any

from . import _C, reference
from ._C import OnCpu
from .arrays import Array


def activation_gradient(
    z: Array,
    dh: Array,
    dz: Any,
    *,
    activation: str | None,
    gate_up: str = "gate_first",
    swiglu_limit: float | None = None,
    weights: Array | None = None,
    slot: Array | None = None,
    ends: Array | None = None,
    scale: float = 1.0,
    h: Any = None,
    dweights: Any = None,
) -> None:
    """Writes the gradient of z, from that of the rows that `combine` weighs and sums. One kernel launch.

    For row r with the weight w = scale * weights.flat[slot[r]]: dz[r] = w * dh[r] * act'(z[r]), h[r] = w * act(z[r]),
    and dweights.flat[slot[r]] = scale * sum(act(z[r]) * dh[r]). Computed in float32 and rounded once. The sum of a row
    has one order, whatever else is computed: the same bits in every run.

    Args:
        z: [R, 2 I] of a gated activation, else [R, I], float16 or bfloat16, any strides: the pre-activation.
        dh: [R, I] of z's dtype, any strides: the gradient of the activation's output, before the weight.
        dz: of z's shape and dtype, to write.
        activation, gate_up, swiglu_limit: as for `grouped_mm`.
        weights: [tokens, k], float32, float16 or bfloat16, contiguous; 1 by default.
        slot: [R], int32, contiguous: the place of each row in weights and dweights. A row of another place has the
            weight 0, and no gradient of it is written.
        ends: [E], int32, contiguous, which rise: rows from the last one on are neither read nor written.
        scale: a factor of all weights.
        h: of dh's shape and dtype, to write: what the gradient of the next product's matrix needs.
        dweights: [tokens, k], float32, contiguous, to write. Places that no slot names are left as they are.

    Raises:
        ValueError, TypeError, UnsupportedError, ArtifactError, CudaError: as `combine` raises them.
    """
    made = _C.activation_gradient(z, dh, weights, slot, ends, activation, gate_up, swiglu_limit, scale, dz, h, dweights)
    if type(made) is OnCpu:
        reference.activation_gradient(
            z, dh, weights, slot, ends, activation, gate_up, swiglu_limit, scale, dz, h, dweights, made.out_dtype
        )
