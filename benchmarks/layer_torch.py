"""The layer as torch computes it, compiled whole: sort, gather, grouped products, activation, sum of a token's rows."""

from collections.abc import Callable

import torch

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


def best_torch(us: dict[str, float]) -> str | None:
    """The fastest of the layers without `index_add_`."""
    return min((name for name in BEST_OF if name in us), key=lambda name: us[name], default=None)


def layer(workload: LayerWorkload, combine: Combine) -> Callable[[], torch.Tensor]:
    """Compiled for this workload's sizes alone. Routing included."""
    shape, grouped_mm = workload.shape, torch.nn.functional.grouped_mm

    def forward(x, w1, w2, b1, b2, ids, weights, experts):
        group, order = torch.sort(ids.flatten(), stable=True)
        ends = torch.searchsorted(group, experts, right=True, out_int32=True)
        z = grouped_mm(x[order // shape.top_k], w1, offs=ends)
        if b1 is not None:
            z = z + b1[group]
        y = grouped_mm(activated(z, shape.activation, shape.gate_up), w2, offs=ends)
        if b2 is not None:
            y = y + b2[group]
        return combine(y, order, weights)

    compiled = torch.compile(forward, fullgraph=True, dynamic=False)
    experts = torch.arange(shape.experts, device="cuda", dtype=torch.int32)
    own = workload
    return lambda: compiled(own.x, own.w1, own.w2, own.b1, own.b2, own.ids, own.weights, experts)
