"""The down gradient of a layer of experts and, back through its activation, what follows it."""

from typing import Any

from . import _C, reference
from ._C import OnCpu
from .arrays import Array
from .grouped_mm import grouped_mm


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
    swiglu_limit: float | None = None,
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
        gradient, weight, z, weights, slot, ends, token, activation, gate_up, swiglu_limit, scale, dz, h, dweights,
        batch_invariant, fused,
    )  # fmt: skip
    if type(made) is OnCpu:
        dh = grouped_mm(gradient, weight, offs=ends, a_index=token, batch_invariant=batch_invariant)
        reference.activation_gradient(
            z, dh, weights, slot, ends, activation, gate_up, swiglu_limit, scale, dz, h, dweights, made.out_dtype
        )
