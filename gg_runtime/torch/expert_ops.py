# pyright: standard
"""`fused_experts` with gradients as torch.compile sees it: one op for the layer, one for all of its gradients."""

from typing import Any

import torch

from . import experts, gradients, refusals
from .ops import LIBRARY, TAGS

_LAYER = "str? activation, str gate_up, float? swiglu_limit, float scale, bool batch_invariant"
_INPUTS = "Tensor x, Tensor w1, Tensor w2, Tensor topk_weights"


LIBRARY.define(
    f"experts_recorded({_INPUTS}, Tensor topk_ids, Tensor? b1, Tensor? b2, Tensor? expert_map, Tensor? add, {_LAYER}) "
    "-> (Tensor out, Tensor z, Tensor ends, Tensor token, Tensor slot, Tensor inverse)",
    tags=TAGS,
)
LIBRARY.define(
    f"experts_gradients(Tensor gradient, Tensor x, Tensor z, Tensor w1, Tensor w2, Tensor topk_weights, Tensor? b2, "
    f"Tensor ends, Tensor token, Tensor slot, Tensor inverse, {_LAYER}, bool[] needs) -> "
    "(Tensor x, Tensor w1, Tensor w2, Tensor topk_weights, Tensor b1, Tensor b2)",
    tags=TAGS,
)


def _recorded(
    x: Any, w1: Any, w2: Any, topk_weights: Any, topk_ids: Any, b1: Any, b2: Any, expert_map: Any, add: Any,
    *layer: Any,
) -> Any:  # fmt: skip
    out, z, routing = experts.run(experts.Layer(*layer), x, w1, w2, topk_weights, topk_ids, b1, b2, expert_map, add)
    return out, z, *routing


def _fake_recorded(x: Any, w1: Any, w2: Any, topk_weights: Any, topk_ids: Any, *_: Any) -> Any:
    tokens, slots = topk_ids.shape
    sizes = (w1.shape[0],), (tokens * slots,), (tokens * slots,), (tokens, slots)
    routing = (topk_ids.new_empty(size, dtype=torch.int32) for size in sizes)
    return x.new_empty(x.shape), x.new_empty((tokens * slots, w1.shape[2])), *routing


def _gradients(gradient: Any, *others: Any) -> Any:
    tensors, layer, needs = others[: len(experts.Kept._fields)], others[len(experts.Kept._fields) : -1], others[-1]
    kept = experts.Kept(*tensors)
    made = experts.go_back(experts.Layer(*layer), kept, gradient, tuple(needs))
    for place, weight in ((1, kept.w1), (2, kept.w2)):
        if made[place] is not None:
            made[place] = _as_in_memory(made[place], weight)
    return tuple(
        (kept.topk_weights if place == 3 else gradient).new_empty((0,)) if one is None else one
        for place, one in enumerate(made)
    )


def _fake_gradients(gradient: Any, *others: Any) -> Any:
    kept, needs = experts.Kept(*others[: len(experts.Kept._fields)]), others[-1]
    weights = (_as_in_memory(weight, weight).shape for weight in (kept.w1, kept.w2))
    shapes = kept.x.shape, *weights, kept.topk_weights.shape, (kept.w1.shape[0], kept.w1.shape[2]), kept.w2.shape[::2]
    return tuple(
        (kept.topk_weights if place == 3 else kept.x).new_empty(shape if needed else (0,))
        for place, (shape, needed) in enumerate(zip(shapes, needs))
    )


def _as_in_memory(gradient: Any, weight: Any) -> Any:
    """Row-major, as outputs of ops are."""
    return gradient.mT if gradients.is_transposed(weight) else gradient


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, w1, w2, topk_weights, _, _, b2, _, _, *layer = inputs
    _, z, *routing = output
    ctx.save_for_backward(x, z, w1, w2, topk_weights, b2 if ctx.needs_input_grad[3] else None, *routing)
    ctx.layer = layer
    ctx.mark_non_differentiable(z, *routing)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, gradient: Any, *_: Any) -> Any:
    if gradient is None:
        return (None,) * (9 + len(experts.Layer._fields))
    kept = experts.Kept(*ctx.saved_tensors)
    needs = [ctx.needs_input_grad[place] for place in (0, 1, 2, 3, 5, 6)]
    made = [
        one if needed else None for one, needed in zip(experts_gradients(gradient, *kept, *ctx.layer, needs), needs)
    ]
    for place, weight in ((1, kept.w1), (2, kept.w2)):
        if needs[place]:
            made[place] = _as_in_memory(made[place], weight)
    of_add = gradient if ctx.needs_input_grad[8] else None
    return *made[:4], None, *made[4:], None, of_add, *[None] * len(experts.Layer._fields)


def _refuse(keys: Any, *given: Any) -> Any:
    tensors = {str(place): tensor for place, tensor in enumerate(given) if isinstance(tensor, torch.Tensor)}
    if torch.is_grad_enabled() and refusals.requires_grad(tensors) is not None:
        raise refusals.of_second_derivatives("fused_experts")
    return experts_gradients.redispatch(keys & torch._C._after_autograd_keyset, *given)


for _device in ("CPU", "CUDA"):
    LIBRARY.impl("experts_recorded", _recorded, _device)
    LIBRARY.impl("experts_gradients", _gradients, _device)
torch.library.register_fake("gg_runtime::experts_recorded", _fake_recorded, lib=LIBRARY)
torch.library.register_fake("gg_runtime::experts_gradients", _fake_gradients, lib=LIBRARY)
torch.library.register_autograd("gg_runtime::experts_recorded", _backward, setup_context=_keep, lib=LIBRARY)
LIBRARY.impl("experts_gradients", _refuse, "Autograd", with_keyset=True)
experts_recorded = torch.ops.gg_runtime.experts_recorded.default
experts_gradients = torch.ops.gg_runtime.experts_gradients.default


def _check_weighted(x: Any, topk_weights: Any, topk_ids: Any, add: Any) -> None:
    """Raises for what torch would broadcast or convert: the layer that is applied has other weights and no `add`."""
    if topk_ids.dim() != 2 or topk_weights.shape != topk_ids.shape:
        raise ValueError(
            f"fused_experts: topk_weights has shape {list(topk_weights.shape)} and topk_ids {list(topk_ids.shape)}; "
            "both are [tokens, top_k]"
        )
    if topk_weights.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise TypeError(
            f"fused_experts: topk_weights has dtype {refusals.words(topk_weights.dtype)}; float32, float16 and "
            "bfloat16 are supported"
        )
    if add is None:
        return
    if add.shape != x.shape:
        raise ValueError(f"fused_experts: add has shape {list(add.shape)}; {list(x.shape)} is needed, that of x")
    if add.dtype != x.dtype:
        raise TypeError(
            f"fused_experts: add has dtype {refusals.words(add.dtype)}; {refusals.words(x.dtype)} is needed, that of x"
        )


def fused_experts(
    x: Any, w1: Any, w2: Any, topk_weights: Any, topk_ids: Any, *, activation: Any, gate_up: str,
    swiglu_limit: Any, b1: Any, b2: Any, expert_map: Any, apply_router_weight_on_input: bool, add: Any, scale: float,
    batch_invariant: bool,
) -> Any:  # fmt: skip
    """`gg_runtime.fused_experts` with gradients, where torch traces."""

    def apply(layer: experts.Layer, rows: Any, weights: Any, ids: Any, added: Any) -> Any:
        return experts_recorded(rows, w1, w2, weights, ids, b1, b2, expert_map, added, *layer)[0]

    layer = experts.Layer(activation, gate_up, swiglu_limit, float(scale), batch_invariant)
    if not apply_router_weight_on_input:
        return apply(layer, x, topk_weights, topk_ids, add)
    _check_weighted(x, topk_weights, topk_ids, add)
    return experts.weighted_on_input(apply, layer, x, topk_weights, topk_ids, w1.shape[0], expert_map, add)
