"""The layer as torch computes it, compiled whole: sort, gather, grouped products, activation, sum of a token's rows."""

from collections.abc import Callable
from typing import Any

import torch

from .layer_shapes import LayerShape
from .layer_workload import ATOMIC_TOLERANCE, TORCH_TOLERANCE, LayerWorkload, activated

Combine = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def summed(y: torch.Tensor, order: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Rows gathered by the inverse order, then one sum over a token's slots."""
    rows = y[inverted(order)].view(*weights.shape, y.shape[1])
    return (rows * weights[..., None]).sum(1).to(y.dtype)


def unrolled(y: torch.Tensor, order: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The same with a term for each slot, which the compiler makes no reduction of."""
    places = inverted(order).view(weights.shape)
    sums = y[places[:, 0]] * weights[:, :1]
    for slot in range(1, weights.shape[1]):
        sums = sums + y[places[:, slot]] * weights[:, slot : slot + 1]
    return sums.to(y.dtype)


class Picked(torch.autograd.Function):
    """rows[index]. The gradient of a row is the sum over its places in the index, [rows, n]: gathers and no atomics."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, index: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(places)
        return rows[index]

    @staticmethod
    def backward(ctx: Any, *of_outputs: Any) -> Any:
        (gradient,), (places,) = of_outputs, ctx.saved_tensors
        sums = gradient[places[:, 0]]
        for place in range(1, places.shape[1]):
            sums = sums.float() + gradient[places[:, place]]
        return sums.to(gradient.dtype), None, None


def gathered(y: torch.Tensor, order: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """As `unrolled`, of rows whose backward is a gather as well."""
    rows = Picked.apply(y, inverted(order), order[:, None]).view(*weights.shape, y.shape[1])
    sums = rows[:, 0] * weights[:, :1]
    for slot in range(1, weights.shape[1]):
        sums = sums + rows[:, slot] * weights[:, slot : slot + 1]
    return sums.to(y.dtype)


def added(y: torch.Tensor, order: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """`index_add_`, as many layers are written: atomic, in bfloat16."""
    tokens, slots = weights.shape
    rows = y * weights.flatten()[order, None]
    out = torch.zeros(tokens, y.shape[1], device=y.device, dtype=y.dtype)
    return out.index_add_(0, order // slots, rows.to(y.dtype))


def inverted(order: torch.Tensor) -> torch.Tensor:
    places = torch.arange(len(order), device=order.device)
    return torch.empty_like(order).scatter_(0, order, places)


# name -> how rows are summed, and the error that is right. The best of the first two is the best torch layer.
COMBINES: dict[str, tuple[Combine, float]] = {
    "torch summed": (summed, TORCH_TOLERANCE),
    "torch unrolled": (unrolled, TORCH_TOLERANCE),
    "torch index_add_": (added, ATOMIC_TOLERANCE),
}
BEST_OF = ("torch summed", "torch unrolled")
# Those that are timed forward and backward. The last has its own backward of what it gathers.
TRAINED: dict[str, Combine] = {name: COMBINES[name][0] for name in BEST_OF} | {"torch gathered": gathered}


def best_torch(us: dict[str, float]) -> str | None:
    """The fastest of the layers without `index_add_`."""
    return min((name for name in TRAINED if name in us), key=lambda name: us[name], default=None)


def forward_of(shape: LayerShape, combine: Combine) -> Callable[..., torch.Tensor]:
    """The layer, routing included."""
    grouped_mm = torch.nn.functional.grouped_mm

    def forward(x, w1, w2, b1, b2, ids, weights, experts):
        group, order = torch.sort(ids.flatten(), stable=True)
        ends = torch.searchsorted(group, experts, right=True, out_int32=True)
        token = order // shape.top_k
        rows = Picked.apply(x, token, inverted(order).view(ids.shape)) if combine is gathered else x[token]
        z = grouped_mm(rows, w1, offs=ends)
        if b1 is not None:
            z = z + b1[group]
        y = grouped_mm(activated(z, shape.activation, shape.gate_up), w2, offs=ends)
        if b2 is not None:
            y = y + b2[group]
        return combine(y, order, weights)

    return forward


def layer(workload: LayerWorkload, combine: Combine) -> Callable[[], torch.Tensor]:
    """Compiled for this workload's sizes alone."""
    shape = workload.shape
    compiled = torch.compile(forward_of(shape, combine), fullgraph=True, dynamic=False)
    experts = torch.arange(shape.experts, device="cuda", dtype=torch.int32)
    own = workload
    return lambda: compiled(own.x, own.w1, own.w2, own.b1, own.b2, own.ids, own.weights, experts)
