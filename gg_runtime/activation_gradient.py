"""Back through an activation: what the gradient of a layer of experts needs between two of its products, and the first
of these with it."""

from typing import Any

from . import _C, reference
from ._C import OnCpu
from .arrays import Array
from .grouped_mm import grouped_mm


def activation_gradient(
    z: Array,
    dh: Array,
    dz: Any,
    *,
    activation: str | None,
    gate_up: str = "gate_first",
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
        activation, gate_up: as for `grouped_mm`.
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
    made = _C.activation_gradient(z, dh, weights, slot, ends, activation, gate_up, scale, dz, h, dweights)
    if type(made) is OnCpu:
        reference.activation_gradient(
            z, dh, weights, slot, ends, activation, gate_up, scale, dz, h, dweights, made.out_dtype
        )


def down_gradient(
    gradient: Array,
    weight: Array,
    z: Array,
    dz: Any,
    *,
    ends: Array,
    token: Array,
    slot: Array,
    weights: Array,
    activation: str | None,
    gate_up: str = "gate_first",
    scale: float = 1.0,
    h: Any = None,
    dweights: Any = None,
    batch_invariant: bool = False,
    fused: bool | None = None,
) -> None:
    """`activation_gradient` of dh[r] = gradient[token[r]] @ weight[the group of r], which is written nowhere.

    One kernel does all but the sums of dweights, which are a small launch of their own, where there is one for the
    activation, the layouts and the GPU, and it is predicted to be faster: dh is then not rounded. Else the product and
    `activation_gradient` are launches of their own.

    Args:
        gradient: [tokens, H], float16 or bfloat16, any strides: that of the layer's output, before the weights.
        weight: [E, H, I] of that dtype, any strides: the transposed matrices of the down projection.
        token: [R], int32 or int64, contiguous: the row of `gradient` that each row takes; zeros where there is none.
        batch_invariant: the bits of a row do not depend on the number of rows.
        fused: whether one kernel does it, for measurements; what is predicted to be faster by default.
        The others are those of `activation_gradient`.
    """
    made = _C.down_gradient(
        gradient, weight, z, weights, slot, ends, token, activation, gate_up, scale, dz, h, dweights, batch_invariant,
        fused,
    )  # fmt: skip
    if type(made) is OnCpu:
        dh = grouped_mm(gradient, weight, offs=ends, a_index=token, batch_invariant=batch_invariant)
        reference.activation_gradient(
            z, dh, weights, slot, ends, activation, gate_up, scale, dz, h, dweights, made.out_dtype
        )
