"""A layer of experts as one writes it in torch, and its gradients: in float64, and in 16 bits for tolerances."""

import math
from typing import Any

import torch

from experts_oracle import GATED, activate

NAMES = ("x", "w1", "w2", "topk_weights", "b1", "b2", "add")  # of what has a gradient


def make(
    tokens=13, k=3, experts=5, hidden=24, inner=20, *, activation="swiglu", dtype=torch.bfloat16, device="cpu",
    transposed=True, biases=False, weight_dtype=torch.float32, dropped=True, seed=0,
) -> dict[str, Any]:  # fmt: skip
    """The arguments of `fused_experts`. transposed: weights as models keep them, seen the other way."""
    of = torch.Generator().manual_seed(seed)
    columns = 2 * inner if activation in GATED else inner

    def normal(*shape, by=1.0, of_dtype=dtype):
        return (torch.randn(shape, generator=of) * by).to(of_dtype).to(device)

    def stack(rows, columns):
        shape, by = (experts, columns, rows) if transposed else (experts, rows, columns), 1 / math.sqrt(max(rows, 1))
        return normal(*shape, by=by).mT if transposed else normal(*shape, by=by)

    low, high = (-1, experts + 1) if dropped else (0, experts)
    made = {
        "x": normal(tokens, hidden), "w1": stack(hidden, columns), "w2": stack(inner, hidden),
        "topk_weights": torch.rand((tokens, k), generator=of).to(weight_dtype).to(device),
        "topk_ids": torch.randint(low, high, (tokens, k), generator=of).to(device), "activation": activation,
    }  # fmt: skip
    if biases:
        made |= {"b1": normal(experts, columns), "b2": normal(experts, hidden)}
    return made


def layer(
    x, w1, w2, topk_weights, topk_ids, *, activation="swiglu", gate_up="gate_first", swiglu_limit=None, b1=None,
    b2=None, expert_map=None, apply_router_weight_on_input=False, add=None, scale=1.0,
):  # fmt: skip
    """In the dtype of its tensors, recorded by torch; weights and the sum over slots in float32 at least."""
    wide = torch.promote_types(x.dtype, torch.float32)
    if expert_map is not None:
        mapped = torch.full_like(topk_ids, -1)
        known = (topk_ids >= 0) & (topk_ids < len(expert_map))
        mapped[known] = expert_map[topk_ids[known]].to(mapped.dtype)
        topk_ids = mapped
    out = torch.zeros(x.shape, dtype=wide, device=x.device)
    for expert in range(len(w1)):
        token, slot = torch.nonzero(topk_ids == expert, as_tuple=True)
        rows, factor = x[token], topk_weights[token, slot].to(wide)[:, None]
        if apply_router_weight_on_input:
            rows, factor = (rows.to(wide) * factor).to(x.dtype), torch.ones_like(factor)
        z = rows @ w1[expert] + (0 if b1 is None else b1[expert])
        y = activate(z, activation, gate_up, swiglu_limit) @ w2[expert] + (0 if b2 is None else b2[expert])
        out = out.index_add(0, token, y.to(wide) * factor)
    out = out * scale
    return (out if add is None else out + add.to(wide)).to(x.dtype)


def leaves_of(given: dict[str, Any], dtype: Any = None, needs: Any = NAMES) -> dict[str, Any]:
    """The same arguments, of which those in `needs` are leaves of a graph. dtype: float64 for all, or as they are."""
    made = dict(given)
    for name in set(NAMES) & given.keys():
        made[name] = (given[name] if dtype is None else given[name].to(dtype)).detach()
        made[name].requires_grad_(name in needs)
    return made


def gradients_of(function: Any, given: dict[str, Any], gradient: Any, dtype: Any = None) -> dict[str, Any]:
    """Those of all leaves, by name; "out" is what the function gave."""
    leaves = leaves_of(given, dtype)
    out = function(**leaves)
    out.backward(gradient.to(out.dtype))
    found = {name: leaves[name].grad for name in NAMES if name in given}
    return found | {"out": out.detach()}


def assert_near(found: dict[str, Any], given: dict[str, Any], gradient: Any, slack: float = 0.25) -> None:
    """Not much further from the layer in float64 than torch's own in 16 bits, as a whole and at the worst place.

    slack: roundings of the largest element that are right in any case; more where sums are of few terms, which cancel.
    """
    exact = gradients_of(layer, given, gradient, torch.float64)
    plain = gradients_of(layer, given, gradient)
    for name, right in exact.items():
        if name not in found:
            continue
        if right is None:
            assert found[name] is None or not found[name].any(), name
            continue
        assert found[name] is not None, f"{name} has no gradient"
        assert found[name].shape == right.shape and found[name].dtype == (given.get(name, given["x"])).dtype, name
        if right.numel() == 0:
            continue
        error, usual = ((one.double() - right).abs() for one in (found[name], zeros_if_none(plain[name], right)))
        unit = torch.finfo(given["x"].dtype).eps
        scale = right.abs().max()
        assert error.square().mean().sqrt() <= 2 * usual.square().mean().sqrt() + slack * unit * scale, (
            f"{name}: {error.square().mean().sqrt():.3g}, {usual.square().mean().sqrt():.3g} in torch, {scale:.3g}"
        )
        assert error.max() <= 4 * usual.max() + 4 * slack * unit * scale, (
            f"{name}: {error.max():.3g}, {usual.max():.3g} in torch"
        )


def zeros_if_none(gradient: Any, like: Any) -> Any:
    return torch.zeros_like(like) if gradient is None else gradient
