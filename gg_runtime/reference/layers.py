"""Layers of experts on the CPU: routing, sums of rows, a whole layer, the way back through an activation."""

import collections
import itertools
from collections.abc import Sequence
from typing import Any

from .activations import activated_with_slopes, joined
from .arithmetic import check_one_framework, float32, int32, namespace, on_cpu, rounded, uncast, zeros
from .products import Activation, grouped_mm
from .scales import quantize_1x128


def route(topk_ids: Any, experts: int, expert_map: Any) -> tuple[Any, ...]:
    """(ends, token, slot, inverse) of the slots sorted by expert, as `gg_runtime.Routing` has them.

    Raises:
        TypeError: torch tensors beside arrays of another kind.
    """
    check_one_framework("route", topk_ids, expert_map)
    experts = int(experts)  # a bool is one too
    tokens, slots = topk_ids.shape
    groups: list[int] = topk_ids.reshape(-1).tolist()
    if expert_map is not None:
        known: list[int] = expert_map.tolist()
        groups = [known[expert] if 0 <= expert < len(known) else -1 for expert in groups]
    groups = [group if 0 <= group < experts else experts for group in groups]
    order = sorted(range(len(groups)), key=groups.__getitem__)
    counts = collections.Counter(groups)
    ends = list(itertools.accumulate(counts[group] for group in range(experts)))
    kept = ends[-1]
    slot = order[:kept] + [-1] * (len(order) - kept)
    token = [place // slots if place >= 0 else -1 for place in slot]
    inverse = [-1] * len(order)
    for place, entry in enumerate(order[:kept]):
        inverse[entry] = place
    made = (ends, (experts,)), (token, (-1,)), (slot, (-1,)), (inverse, (tokens, slots))
    return tuple(int32(values, topk_ids).reshape(shape) for values, shape in made)


@uncast
def combine(y: Any, inverse: Any, weights: Any, add: Any, scale: float, out: Any, out_dtype: str) -> Any:
    """Each token's rows of y, weighted, scaled and summed in float32 in the order of its slots, plus `add`.

    Raises:
        TypeError: torch tensors beside arrays of another kind.
    """
    check_one_framework("combine", y, inverse, weights, add, out)
    arrays, rows = namespace(y), float32(y)
    tokens, slots = inverse.shape
    sums = zeros(y, (tokens, y.shape[1]))
    for j in range(slots if rows.shape[0] else 0):
        kept = (inverse[:, j] >= 0) & (inverse[:, j] < rows.shape[0])
        row = rows[arrays.where(kept, inverse[:, j], 0)]
        term = row if weights is None else row * float32(weights)[:, j, None]
        sums = sums + arrays.where(kept[:, None], term, 0.0)
    sums = sums * arrays.asarray(scale, dtype=arrays.float32, **on_cpu(y))
    result = rounded(sums if add is None else sums + float32(add), y, out_dtype)
    if out is None:
        return result
    out[...] = result
    return out


@uncast
def fused_experts(
    x: Any,
    w1: Any,
    w2: Any,
    topk_weights: Any,
    topk_ids: Any,
    activation: str | None,
    gate_up: str,
    swiglu_limit: float | None,
    b1: Any,
    b2: Any,
    expert_map: Any,
    weights_on_input: bool,
    add: Any,
    scale: float,
    out: Any,
    out_dtype: str,
    w1_scale: Any = None,
    w2_scale: Any = None,
) -> Any:
    """The layer of `gg_runtime.fused_experts`, with the roundings of its kernels.

    Raises:
        TypeError: torch tensors beside arrays of another kind.
    """
    check_one_framework(
        "fused_experts", x, w1, w2, topk_weights, topk_ids, b1, b2, expert_map, add, out, w1_scale, w2_scale
    )  # named for the layer, before the parts check their own
    ends, token, slot, inverse = route(topk_ids, w1.shape[0], expert_map)
    kept = int(ends[-1])
    rows = x[token[:kept]]
    weights = float32(topk_weights).reshape(-1)[slot[:kept]] if weights_on_input else None
    after = Activation(activation, gate_up, swiglu_limit)
    if w1_scale is not None:
        y = _quantized_products(rows, weights, (w1, w1_scale, b1), (w2, w2_scale, b2), ends, after, out_dtype)
    else:
        if weights is not None:
            rows = rounded(float32(rows) * weights[:, None], x, out_dtype)
        inner = grouped_mm(rows, w1, ends, b1, None, out_dtype, after=after)
        y = grouped_mm(inner, w2, ends, b2, None, out_dtype)
    return combine(y, inverse, None if weights_on_input else topk_weights, add, scale, out, out_dtype)


def _quantized_products(
    rows: Any, weights: Any, up: Sequence[Any], down: Sequence[Any], ends: Any, after: Activation, out_dtype: str
) -> Any:
    """The rows that come out of a layer with e4m3 weights. up, down: weights, their scales, biases.

    `weights`: of the rows that go in, or None.
    """
    q, scales = quantize_1x128(rows)
    if weights is not None:
        scales = scales * weights[:, None]
    sums = grouped_mm(q, up[0], ends, up[2], None, out_dtype, scales, up[1])
    q, scales = quantize_1x128(after.of(float32(sums), namespace(rows)))
    return grouped_mm(q, down[0], ends, down[2], None, out_dtype, scales, down[1])


@uncast
def activation_gradient(
    z: Any,
    dh: Any,
    weights: Any,
    slot: Any,
    ends: Any,
    activation: str | None,
    gate_up: str,
    swiglu_limit: float | None,
    scale: float,
    dz: Any,
    h: Any,
    dweights: Any,
    out_dtype: str,
) -> None:
    """Writes `dz`, `h` and `dweights` of `gg_runtime.activation_gradient`, with the roundings of its kernel.

    Raises:
        TypeError: torch tensors beside arrays of another kind.
    """
    check_one_framework("activation_gradient", z, dh, weights, slot, ends, dz, h, dweights)
    arrays = namespace(z)
    rows = z.shape[0] if ends is None else min(z.shape[0], max(int(ends[-1]), 0))
    gradient = float32(dh[:rows])
    value, by_gate, by_up = activated_with_slopes(float32(z[:rows]), activation, gate_up, swiglu_limit, arrays)
    factor = arrays.asarray(scale, dtype=arrays.float32, **on_cpu(z))
    places: Any = None if slot is None else slot[:rows]
    if weights is not None:
        flat = float32(weights).reshape(-1)
        known = (places >= 0) & (places < flat.shape[0])
        factor = factor * arrays.where(known, flat[arrays.where(known, places, 0)], 0.0)[:, None] if len(flat) else 0.0
    if dweights is not None:
        total = arrays.asarray(scale, dtype=arrays.float32, **on_cpu(z)) * (value * gradient).sum(1)
        known = (places >= 0) & (places < dweights.shape[0] * dweights.shape[1])
        dweights.reshape(-1)[places[known]] = total[known]
    if h is not None:
        h[:rows] = rounded(factor * value, z, out_dtype)
    by_gate, by_up = (factor * gradient * slope if slope is not None else None for slope in (by_gate, by_up))
    dz[:rows] = rounded(joined(by_gate, by_up, gate_up, arrays), z, out_dtype)
