"""python -m benchmarks.fp8_layer [ROW ...]: layers of experts in fp8 beside our own in bfloat16, of the same sizes.

A row is a name, or NAME@TOKENS. Errors are relative to the layer with products in float32, in the Euclidean norm. Where
the time goes is from a profile.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

import gg_runtime

from . import layer_kernels
from .layer_shapes import LAYERS, LayerShape, layer_named
from .layer_workload import LayerWorkload
from .peers import reason
from .timing import Graph, interleaved_hot_us, interleaved_us

ROWS = ("Qwen3-30B", "DeepSeek-V3", "Qwen3-30B decode")
BF16, FP8 = "bfloat16", "fp8"
ASKED, AIM = 1.35, 1.7  # times as fast as in bfloat16, of layers that are no decoding
BLOCK, LARGEST = 128, 448.0
TOLERANCES = {BF16: 1e-2, FP8: 8e-2}  # of e4m3 weights and rows, each rounded by up to 1/16


@dataclass
class Row:
    name: str
    us: dict[str, float] = field(default_factory=dict)
    hot_us: dict[str, float] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    kernels: dict[str, Any] = field(default_factory=dict)
    variants: list[str] = field(default_factory=list)


def quantized(weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(e4m3 [E, N, K], float32 scales of 128x128) of weights [E, K, N], K contiguous."""
    made, scales = torch.empty(weights.mT.shape, device="cuda", dtype=torch.float8_e4m3fn), []
    for index, one in enumerate(weights.mT):
        n, k = one.shape
        padded = torch.nn.functional.pad(one.float(), (0, -k % BLOCK, 0, -n % BLOCK))
        tiles = padded.view(padded.shape[0] // BLOCK, BLOCK, -1, BLOCK)
        scale = tiles.abs().amax((1, 3)) / LARGEST
        made[index] = (tiles / scale[:, None, :, None]).view(padded.shape)[:n, :k].to(torch.float8_e4m3fn)
        scales.append(scale)
    return made, torch.stack(scales)


def calls_of(own: LayerWorkload, row: Row) -> dict[str, tuple[Callable[[], Any], torch.Tensor]]:
    """Name -> the call and its output."""
    shape, routing = own.shape, (own.weights, own.ids)
    (w1, s1), (w2, s2) = quantized(own.w1), quantized(own.w2)
    given: dict[str, tuple[Any, Any, dict[str, Any]]] = {
        BF16: (own.w1, own.w2, {}),
        FP8: (w1.mT, w2.mT, {"w1_scale": s1, "w2_scale": s2}),
    }
    made = {}
    for name, (first, second, options) in given.items():
        out = torch.empty_like(own.x)
        sizes = (shape.tokens, shape.top_k, shape.experts, shape.hidden, shape.intermediate)
        needed = gg_runtime.fused_experts_workspace(*sizes, activation=shape.activation, use_fp8_w8a8=name != BF16)
        options |= {"activation": shape.activation, "gate_up": shape.gate_up, "b1": own.b1, "b2": own.b2}
        memory: dict[str, Any] = {"out": out, "workspace": torch.empty(needed, device="cuda", dtype=torch.uint8)}
        plan = gg_runtime.ExpertsPlan(own.x, first, second, *routing, **options, **memory)
        if name == FP8:
            row.variants = list(plan.variants)
        made[name] = plan.run, out
    return made


def measure(name: str, shape: LayerShape) -> Row:
    row, own = Row(name), LayerWorkload(shape)
    calls = calls_of(own, row)
    graphs = {one: Graph([call]) for one, (call, _) in calls.items()}
    for one, (_, out) in calls.items():
        out.fill_(float("nan"))
        graphs[one].run()
        row.errors[one] = float((out.float() - own.out).norm() / own.out.norm())
        if not row.errors[one] <= TOLERANCES[one]:
            raise ArithmeticError(f"{name}, {one}: relative error {row.errors[one]:.1e}")
    row.us = dict(zip(graphs, interleaved_us(list(graphs.values()))))
    row.hot_us = dict(zip(graphs, interleaved_hot_us(list(graphs.values()))))
    for one in (FP8, BF16):
        try:
            row.kernels[one] = layer_kernels.parts_us(graphs[one])
        except Exception as error:  # the figures still count
            row.kernels[one] = reason(error)
    return row


def told(row: Row) -> str:
    lines = [f"{row.name}: {' · '.join(row.variants)}"]
    for one, us in row.us.items():
        lines.append(
            f"  {one:8} {us:9.1f} us, hot {row.hot_us[one]:9.1f}; x{row.us[BF16] / us:.3f}, hot "
            f"x{row.hot_us[BF16] / row.hot_us[one]:.3f}; error {row.errors[one]:.2e}"
        )
    lines += [f"  {one}: {kernels}" for one, kernels in row.kernels.items()]
    if "decode" not in row.name:
        times = row.us[BF16] / row.us[FP8]
        lines.append(f"  {times:.3f} times as fast as in bfloat16, {ASKED} is asked, {AIM} the aim")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fp8_layer", description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(LAYERS)}; or ROW@TOKENS")
    names = parser.parse_args().rows or ROWS
    print(f"{torch.cuda.get_device_name()}, gg_runtime {gg_runtime.__version__}, torch {torch.__version__}")
    for name in names:
        print(told(measure(name, layer_named(name))), flush=True)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
