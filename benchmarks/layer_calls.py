"""The parts of our layer, each as one call, with what it must write."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import gg_runtime

from . import layer_torch, layer_vllm
from .layer_workload import (
    KEPT_TOLERANCE,
    LAYER_TOLERANCE,
    PRODUCT_TOLERANCE,
    TORCH_TOLERANCE,
    LayerWorkload,
    worst_row,
)
from .measured import kept
from .timing import Call

UP, DOWN = "up", "down"
ACTIVATED, GATHERED, KEPT = "up + activation", "up + activation + gather", "the same, pre-activation kept"
ROUTE, COMBINE, LAYER = "route", "combine", "fused_experts"
VLLM, VLLM_PRODUCTS = "vLLM's Triton layer", "vLLM's two products"


@dataclass(frozen=True)
class Part:
    """`outputs`: memory that the call writes. `check`: the error of what lies there, or an exception."""

    call: Call
    outputs: Callable[[], list[torch.Tensor]]
    check: Callable[[], float]


def product(
    call: Call,
    *written: tuple[torch.Tensor, torch.Tensor],
    tolerance: float = PRODUCT_TOLERANCE,
) -> Part:
    """`written`: each output with its reference."""
    return Part(
        call,
        lambda: [output for output, _ in written],
        lambda: max(worst_row(output, exact, tolerance) for output, exact in written),
    )


def up_parts(own: LayerWorkload) -> dict[str, Callable[[], Part]]:
    """The first product: plain, activated, with rows gathered in the kernel, with the pre-activation kept."""
    offs, token = own.routing.ends, own.routing.token
    bias: dict[str, Any] = {"offs": offs, "bias": own.b1}
    fused: dict[str, Any] = bias | {"activation": own.shape.activation, "gate_up": own.shape.gate_up}

    def z() -> torch.Tensor:
        return torch.empty(own.z.shape, device="cuda", dtype=torch.bfloat16)

    def plain() -> Part:
        out = z()
        return product(lambda: gg_runtime.grouped_mm(own.gathered, own.w1, out=out, **bias), (out, own.z))

    def up(gathered: bool, kept: bool) -> Part:
        out, options = torch.empty_like(own.inner), dict(fused)
        written = [(out, own.h)]
        if kept:
            options["preactivation"] = z()
            written.append((options["preactivation"], own.z))
        if gathered:
            options["a_index"] = token
        a = own.x if gathered else own.gathered
        tolerance = KEPT_TOLERANCE if kept else PRODUCT_TOLERANCE
        return product(lambda: gg_runtime.grouped_mm(a, own.w1, out=out, **options), *written, tolerance=tolerance)

    return {
        UP: plain,
        ACTIVATED: lambda: up(gathered=False, kept=False),
        GATHERED: lambda: up(gathered=True, kept=False),
        KEPT: lambda: up(gathered=True, kept=True),
    }


def down(own: LayerWorkload) -> Part:
    out = torch.empty_like(own.rows)
    options = {"offs": own.routing.ends, "bias": own.b2, "out": out}
    return product(lambda: gg_runtime.grouped_mm(own.inner, own.w2, **options), (out, own.y))


def route(own: LayerWorkload) -> Part:
    made: list[gg_runtime.Routing] = []

    def call() -> None:
        made[:] = [gg_runtime.route(own.ids, own.shape.experts)]

    def check() -> float:
        group, order = torch.sort(own.ids.flatten(), stable=True)
        experts = torch.arange(own.shape.experts, device="cuda", dtype=group.dtype)
        ends = torch.searchsorted(group, experts, right=True)
        inverse = layer_torch.inverted(order).view(own.ids.shape)
        for got, want in zip(made[0], (ends, order // own.shape.top_k, order, inverse)):
            if not torch.equal(got.long(), want):
                raise ArithmeticError("the routing is wrong")
        return 0.0

    return Part(call, lambda: list(made[0]), check)


def combine(own: LayerWorkload) -> Part:
    out = torch.empty_like(own.x)
    inverse, exact = own.routing.inverse, own.out
    return Part(
        lambda: gg_runtime.combine(own.rows, inverse, own.weights, out=out),
        lambda: [out],
        lambda: worst_row(out, exact, LAYER_TOLERANCE),
    )


def fused(own: LayerWorkload) -> Part:
    shape, out = own.shape, torch.empty_like(own.x)
    sizes = (shape.tokens, shape.top_k, shape.experts, shape.hidden, shape.intermediate)
    needed = gg_runtime.fused_experts_workspace(*sizes, activation=shape.activation)
    workspace = torch.empty(needed, device="cuda", dtype=torch.uint8)
    options = {"activation": shape.activation, "gate_up": shape.gate_up, "b1": own.b1, "b2": own.b2}
    options |= {"out": out, "workspace": workspace}
    return Part(
        lambda: gg_runtime.fused_experts(own.x, own.w1, own.w2, own.weights, own.ids, **options),
        lambda: [out, workspace],
        lambda: worst_row(out, own.out, LAYER_TOLERANCE),
    )


def peer(own: LayerWorkload, call: Callable[[], torch.Tensor], tolerance: float) -> Part:
    """Another's layer, which allocates its output."""
    keep, last = kept(call)
    return Part(keep, last, lambda: worst_row(last()[0], own.out, tolerance))


def torch_part(own: LayerWorkload, name: str) -> Part:
    how, tolerance = layer_torch.COMBINES[name]
    return peer(own, layer_torch.layer(own, how), tolerance)


def vllm_products(layer: layer_vllm.Layer) -> Part:
    call, written = layer.products()
    return Part(
        call,
        lambda: [output for output, _ in written],
        lambda: max(worst_row(output, exact(), PRODUCT_TOLERANCE) for output, exact in written),
    )


def parts(own: LayerWorkload, torch_layers: tuple[str, ...]) -> dict[str, Callable[[], Part]]:
    """Name -> what makes the part. One that cannot be made loses no other."""
    makers: dict[str, Callable[[], Part]] = up_parts(own)
    makers |= {
        DOWN: lambda: down(own),
        ROUTE: lambda: route(own),
        COMBINE: lambda: combine(own),
        LAYER: lambda: fused(own),
    }
    for name in torch_layers:
        makers[name] = lambda name=name: torch_part(own, name)
    if layer_vllm.has(own.shape):
        layer = functools.cache(lambda: layer_vllm.Layer(own))
        makers |= {
            VLLM: lambda: peer(own, layer().whole(), TORCH_TOLERANCE),
            VLLM_PRODUCTS: lambda: vllm_products(layer()),
        }
    return makers
