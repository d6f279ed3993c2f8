# pyright: standard, reportMissingModuleSource=false
"""Gradients of `fused_experts`: the layer by its parts, which keeps little, and its backward, which is four products.

Kept for the backward: x, the pre-activation, the parameters, the weights of the slots and int32 indices. The rows that
were gathered, the output of the activation and that of the down projection are not: as in SonicMoE (arXiv 2512.14080),
the gradient of a weight is the inner product of what the activation gave and its gradient, both of which the backward
has anyway.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

import gg_runtime

from .. import _C
from ..down_gradient import down_gradient
from . import gradients, main_gradients, refusals

INPUTS = ("x", "w1", "w2", "topk_weights", "b1", "b2", "add")  # that may have a gradient


class Layer(NamedTuple):
    """What a layer is, besides its tensors."""

    activation: str | None
    gate_up: str
    swiglu_limit: float | None
    scale: float
    batch_invariant: bool


class Kept(NamedTuple):
    """The tensors that the backward reads. z is [tokens * k, columns of w1], b2 None where there is none."""

    x: Any
    z: Any
    w1: Any
    w2: Any
    topk_weights: Any
    b2: Any
    ends: Any
    token: Any
    slot: Any
    inverse: Any


def run(
    layer: Layer, x: Any, w1: Any, w2: Any, topk_weights: Any, topk_ids: Any, b1: Any, b2: Any, expert_map: Any,
    add: Any,
) -> tuple[Any, Any, gg_runtime.Routing]:  # fmt: skip
    """(out, z, routing) of the layer."""
    _C.check_experts(
        x, w1, w2, topk_weights, topk_ids, layer.activation, layer.gate_up, layer.swiglu_limit, b1, b2, expert_map,
        False, add, layer.scale, None, None, None, layer.batch_invariant, None, None,
    )  # fmt: skip
    routing = gg_runtime.route(topk_ids, w1.shape[0], expert_map)
    up: dict[str, Any] = {"offs": routing.ends, "a_index": routing.token, "bias": b1}
    invariant = layer.batch_invariant
    if layer.activation is None:
        h = z = gg_runtime.grouped_mm(x, w1, **up, batch_invariant=invariant)
    else:
        z = x.new_empty((routing.token.shape[0], w1.shape[2]))
        h = gg_runtime.grouped_mm(
            x, w1, **up, activation=layer.activation, gate_up=layer.gate_up, swiglu_limit=layer.swiglu_limit,
            preactivation=z, batch_invariant=invariant,
        )  # fmt: skip
    y = gg_runtime.grouped_mm(h, w2, offs=routing.ends, bias=b2, batch_invariant=invariant)
    out = gg_runtime.combine(y, routing.inverse, topk_weights, add=add, scale=layer.scale)
    return out, z, routing


def go_back(
    layer: Layer, kept: Kept, gradient: Any, needs: Sequence[bool], main: Sequence[Any] = (None, None)
) -> list[Any]:
    """The gradients of INPUTS without `add`, None where `needs` has False.

    main: where those of w1 and w2 are added to a float32 array instead; they are None here.
    """
    gradient = _in_rows(gradient)
    of_x = of_w1 = of_w2 = of_weights = of_b1 = of_b2 = None
    if needs[3]:
        of_weights = torch.zeros(kept.topk_weights.shape, dtype=torch.float32, device=gradient.device)
    by_dz = needs[0] or needs[1] or needs[4]
    if by_dz or needs[2] or needs[3]:
        dz, h = through_the_activation(layer, kept, gradient, of_weights, keeps_h=needs[2])
        if needs[2]:
            of_w2 = of_weight(h, None, gradient, kept.token, kept.ends, kept.w2, main[1])
        del h
        if needs[0]:
            rows = gg_runtime.grouped_mm(dz, kept.w1.mT, offs=kept.ends, batch_invariant=layer.batch_invariant)
            of_x = gg_runtime.combine(rows, kept.inverse)
            del rows
        if needs[1]:
            of_w1 = of_weight(kept.x, kept.token, dz, None, kept.ends, kept.w1, main[0])
        if needs[4]:
            ones = dz.new_ones(()).expand(1, dz.shape[0])
            of_b1 = gg_runtime.grouped_mm(ones, dz, offs=kept.ends).squeeze(1)
    if needs[5]:
        of_b2 = gg_runtime.grouped_mm(
            _weights_of_rows(layer, kept)[None], gradient, offs=kept.ends, b_index=kept.token
        ).squeeze(1)
    if of_weights is not None:
        if kept.b2 is not None:
            of_weights += _by_the_bias(layer, kept, gradient)
        of_weights = of_weights.to(kept.topk_weights.dtype)
    return [of_x, of_w1, of_w2, of_weights, of_b1, of_b2]


def _in_rows(gradient: Any) -> Any:
    """With the elements of each row one behind the other, and rows of their own: not what `expand` makes."""
    rows, columns = gradient.shape
    plain = gradient.stride(1) == 1 and (gradient.stride(0) >= columns or rows <= 1)
    return gradient if plain else gradient.contiguous()


def through_the_activation(layer: Layer, kept: Kept, gradient: Any, of_weights: Any, keeps_h: bool) -> tuple[Any, Any]:
    """(dz, h): the gradient of z, and the weighted output of the activation; writes `of_weights`."""
    dz = torch.empty_like(kept.z)
    h = kept.z.new_empty((kept.z.shape[0], kept.w2.shape[1])) if keeps_h else None
    down_gradient(
        gradient, kept.w2.mT, kept.z, dz, ends=kept.ends, token=kept.token, slot=kept.slot, weights=kept.topk_weights,
        activation=layer.activation, gate_up=layer.gate_up, swiglu_limit=layer.swiglu_limit, scale=layer.scale, h=h,
        dweights=of_weights, batch_invariant=layer.batch_invariant,
    )  # fmt: skip
    return dz, h


def of_weight(rows: Any, row_index: Any, other: Any, other_index: Any, ends: Any, weight: Any, main: Any) -> Any:
    """The gradient of a weight [E, K, N]: rows[group].T @ other[group], either by an index, as the weight lies.

    None where it is added to `main`, float32 in the weight's shape.
    """
    given: dict[str, Any] = {"offs": ends}
    if main is not None:
        given |= {"beta": 1.0}
    lies = weight if main is None else main
    if gradients.is_transposed(lies):
        if main is not None:
            given |= {"out": main.mT}
        made = gg_runtime.grouped_mm(other.mT, rows, a_index=other_index, b_index=row_index, **given).mT
    else:
        if main is not None:
            given |= {"out": main}
        made = gg_runtime.grouped_mm(rows.mT, other, a_index=row_index, b_index=other_index, **given)
    return made if main is None else None


def _weights_of_rows(layer: Layer, kept: Kept) -> Any:
    """[rows]: what each row of the down projection is multiplied by; anything past the last end."""
    weights = kept.topk_weights.reshape(-1).float().index_select(0, kept.slot.clamp(min=0))
    return (layer.scale * weights).to(kept.z.dtype)


def _by_the_bias(layer: Layer, kept: Kept, gradient: Any) -> Any:
    """[tokens, k], float32: what b2 adds to the gradients of weights. Zeros for slots that were dropped."""
    if kept.inverse.numel() == 0:
        return torch.zeros_like(kept.inverse, dtype=torch.float32)
    (gradient, by), (bias, of_bias) = _in_range(gradient), _in_range(kept.b2)
    of_rows = gg_runtime.grouped_mm(gradient, bias[:, :, None], offs=kept.ends, a_index=kept.token)
    of_slots = of_rows.reshape(-1).float().index_select(0, kept.inverse.reshape(-1).clamp(min=0))
    return layer.scale * by * of_bias * torch.where(kept.inverse >= 0, of_slots.reshape(kept.inverse.shape), 0.0)


def _in_range(factor: Any) -> tuple[Any, Any]:
    """(a factor of sums that float16 is to hold, its elements 1 at most, and the power of two that it was divided by).
    Other dtypes have the range of float32.
    """
    if factor.dtype is not torch.float16 or factor.numel() == 0:
        return factor, 1.0
    exponent = torch.frexp(factor.abs().amax().float()).exponent
    return torch.ldexp(factor, -exponent), torch.ldexp(torch.ones_like(exponent, dtype=torch.float32), exponent)


def _waited_for(gradient: Any) -> Any:
    """A gradient that has memory: an op on an AsyncCollectiveTensor waits, and a plain tensor comes out."""
    tensor: Any = torch.Tensor
    return gradient if type(gradient).__torch_dispatch__ is tensor.__torch_dispatch__ else gradient.clone()


class FusedExperts(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, layer: Layer, into_main_grad: bool, topk_ids: Any, expert_map: Any, x: Any, w1: Any, w2: Any,
        topk_weights: Any, b1: Any, b2: Any, add: Any,
    ) -> Any:  # fmt: skip
        out, z, routing = run(layer, x, w1, w2, topk_weights, topk_ids, b1, b2, expert_map, add)
        # The backward reads b2 for the gradient of the weights alone.
        bias = b2 if ctx.needs_input_grad[7] else None
        ctx.save_for_backward(x, z, w1, w2, topk_weights, bias, *routing)
        ctx.layer = layer
        ctx.owners = main_gradients.owners(w1, w2, ctx.needs_input_grad[5:7]) if into_main_grad else (None, None)
        ctx.set_materialize_grads(False)
        return out

    @staticmethod
    def backward(ctx: Any, *of_outputs: Any) -> Any:
        (gradient,) = of_outputs
        if gradient is None:
            return (None,) * 11
        gradient = _waited_for(gradient)
        kept, needs = Kept(*ctx.saved_tensors), ctx.needs_input_grad[4:]

        def compute() -> list[Any]:
            main = [None if owner is None else owner.main() for owner in ctx.owners]
            made = go_back(ctx.layer, kept, gradient, needs, main)
            for place, owner in zip((1, 2), ctx.owners):
                made[place] = made[place] if owner is None else owner.gradient(kept[place + 1])
            return made

        inputs = [gradient, *(tensor for tensor in kept[:6] if tensor is not None)]
        return None, None, None, None, *gradients.once("fused_experts", inputs, compute), gradient if needs[6] else None


def fused_experts(
    x: Any,
    w1: Any,
    w2: Any,
    topk_weights: Any,
    topk_ids: Any,
    *,
    activation: str | None = "swiglu",
    gate_up: str = "gate_first",
    swiglu_limit: float | None = None,
    b1: Any = None,
    b2: Any = None,
    w1_scale: Any = None,
    w2_scale: Any = None,
    expert_map: Any = None,
    apply_router_weight_on_input: bool = False,
    add: Any = None,
    scale: float = 1.0,
    out: Any = None,
    workspace: Any = None,
    max_rows: int | None = None,
    batch_invariant: bool = False,
    into_main_grad: bool = False,
) -> Any:
    """`gg_runtime.fused_experts` of torch tensors, with gradients of x, w1, w2, topk_weights, b1, b2 and `add`.

    `gg_runtime.fused_experts` comes here by itself where torch records gradients of one of them. To call this function
    is of use for `into_main_grad` alone.

    Args:
        into_main_grad: adds the gradients of w1 and w2 to their `main_grad` in float32, within the kernel that makes
            them, as Megatron's and Transformer Engine's `gradient_accumulation_fusion` do. w1 and w2 are then
            parameters with this attribute, float32 and of their shape, or `parameter.mT`. `parameter.grad` stays None,
            unless the parameter has an attribute `grad_added_to_main_grad`: it is then set to True and `grad` is a
            tensor of no meaning (zeros where `zero_out_wgrad` is set), so that hooks run as Megatron expects.
        w1_scale, w2_scale: refused where gradients are recorded.
        out, workspace, max_rows: refused where gradients are recorded.

    A layer with apply_router_weight_on_input keeps its weighted rows, [tokens * k, H], in place of x, and x in float32
    where topk_weights has a gradient.

    Raises:
        RuntimeError: one of these with a tensor that requires grad; a gradient that is differentiated again.
        ValueError: `into_main_grad` and no `main_grad` that fits.
        And what `gg_runtime.fused_experts` raises.
    """
    if into_main_grad and torch.compiler.is_compiling():
        raise RuntimeError("fused_experts: into_main_grad is for eager calls; leave it out under torch.compile")
    inputs: dict[str, Any] = dict(zip(INPUTS, (x, w1, w2, topk_weights, b1, b2, add)))
    refusals.check_no_transforms("fused_experts")
    refusals.check_tensors("fused_experts", **{name: tensor for name, tensor in inputs.items() if tensor is not None})
    scales = {"w1_scale": w1_scale, "w2_scale": w2_scale}
    recorded = torch.is_grad_enabled() and refusals.requires_grad(inputs | scales) is not None
    if torch.compiler.is_compiling() or not recorded:
        return gg_runtime.fused_experts(
            x, w1, w2, topk_weights, topk_ids, activation=activation, gate_up=gate_up,
            swiglu_limit=swiglu_limit, b1=b1, b2=b2, w1_scale=w1_scale, w2_scale=w2_scale, expert_map=expert_map,
            apply_router_weight_on_input=apply_router_weight_on_input, add=add, scale=scale,
            out=out, workspace=workspace, max_rows=max_rows, batch_invariant=batch_invariant,
        )  # fmt: skip
    refusals.check("fused_experts", inputs, out=out, **scales)
    refusals.check_no_workspace("fused_experts", inputs, workspace=workspace, max_rows=max_rows)
    refusals.check_number("fused_experts", "scale", scale)
    refusals.check_number("fused_experts", "swiglu_limit", swiglu_limit)

    def apply(layer: Layer, rows: Any, weights: Any, ids: Any, added: Any) -> Any:
        return FusedExperts.apply(layer, into_main_grad, ids, expert_map, rows, w1, w2, weights, b1, b2, added)

    layer = Layer(activation, gate_up, swiglu_limit, float(scale), batch_invariant)
    if not apply_router_weight_on_input:
        return apply(layer, x, topk_weights, topk_ids, add)
    _C.check_experts(  # the layer that is applied has other rows, weights and ids
        x, w1, w2, topk_weights, topk_ids, activation, gate_up, layer.swiglu_limit, b1, b2, expert_map, True, add,
        layer.scale, None, None, None, batch_invariant, None, None,
    )  # fmt: skip
    return weighted_on_input(apply, layer, x, topk_weights, topk_ids, w1.shape[0], expert_map, add)


def weighted_on_input(
    apply: Any, layer: Layer, x: Any, topk_weights: Any, topk_ids: Any, experts: int, expert_map: Any, add: Any
) -> Any:
    """The layer whose rows are weighted before the up projection: one without weights, of tokens of one slot each."""
    tokens, slots = topk_ids.shape
    kept = _is_kept(topk_ids, experts, expert_map)
    weights = torch.where(kept, topk_weights, torch.zeros_like(topk_weights)).float()
    rows = (x.float()[:, None, :] * weights[:, :, None]).to(x.dtype).reshape(tokens * slots, x.shape[1])
    ids = topk_ids.reshape(tokens * slots, 1)
    ones = torch.ones_like(ids, dtype=torch.float32)
    if slots == 1:
        return apply(layer, rows, ones, ids, add)
    sums = apply(layer._replace(scale=1.0), rows, ones, ids, None).reshape(tokens, slots, x.shape[1])
    total = layer.scale * sums.float().sum(1)
    return (total if add is None else total + add.float()).to(x.dtype)


def _is_kept(topk_ids: Any, experts: int, expert_map: Any) -> Any:
    """Which slots are of an expert that is here."""
    if expert_map is None:
        return (topk_ids >= 0) & (topk_ids < experts)
    known = expert_map.shape[0]
    if known == 0:
        return torch.zeros_like(topk_ids, dtype=torch.bool)
    mapped = expert_map[topk_ids.clamp(0, known - 1)]
    return (topk_ids >= 0) & (topk_ids < known) & (mapped >= 0) & (mapped < experts)
