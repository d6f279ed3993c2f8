"""Float32 arrays that gradients of parameters are added to: the attribute `main_grad`, as Megatron names it."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch


class Owner(NamedTuple):
    """A parameter with a main gradient, and whether the weight of the call is its .mT."""

    parameter: Any
    transposed: bool

    def main(self) -> Any:
        """In the shape of the weight."""
        return self.parameter.main_grad.mT if self.transposed else self.parameter.main_grad

    def gradient(self, weight: Any) -> Any:
        """What the backward gives for a gradient that was added already: None, or what Megatron's hooks ask for."""
        if not hasattr(self.parameter, "grad_added_to_main_grad"):
            return None
        self.parameter.grad_added_to_main_grad = True
        make = torch.zeros_like if getattr(self.parameter, "zero_out_wgrad", False) else torch.empty_like
        return make(weight)


def owners(w1: Any, w2: Any, needs: Sequence[bool]) -> tuple[Owner | None, Owner | None]:
    """Of w1 and of w2; None for one that needs no gradient.

    Raises:
        ValueError: a weight that has none, or one that does not fit.
    """
    found = [owner_of(name, weight) if needed else None for name, weight, needed in zip(("w1", "w2"), (w1, w2), needs)]
    return found[0], found[1]


def owner_of(name: str, weight: Any) -> Owner:
    parameter = weight if hasattr(weight, "main_grad") else weight._base
    main = getattr(parameter, "main_grad", None)
    if main is None:
        raise ValueError(
            f"fused_experts: into_main_grad is given, and {name} has no main_grad; set parameter.main_grad = "
            f"torch.zeros_like(parameter, dtype=torch.float32), and pass the parameter or parameter.mT as {name}"
        )
    if main.dtype is not torch.float32 or main.shape != parameter.shape or main.device != parameter.device:
        raise ValueError(
            f"fused_experts: the main_grad of {name} is {main.dtype} {list(main.shape)} on {main.device}; float32 "
            f"{list(parameter.shape)} on {parameter.device} is needed"
        )
    if parameter is weight or _same(parameter, weight):
        return Owner(parameter, False)
    if parameter.dim() == 3 and _same(parameter.mT, weight):
        return Owner(parameter, True)
    raise ValueError(
        f"fused_experts: into_main_grad is given, and {name} is another view of its parameter than parameter.mT; pass "
        "the parameter or parameter.mT"
    )


def _same(x: Any, y: Any) -> bool:
    """Whether they are one view of one memory."""
    return x.shape == y.shape and x.stride() == y.stride() and x.storage_offset() == y.storage_offset()
