"""python -m benchmarks.fp8_layer [ROW ...]: layers of experts in fp8 beside our own in bfloat16, of the same sizes.

A row is a name, or NAME@TOKENS. Errors are relative to the layer with products in float32, in the Euclidean norm. Where
the time goes is from a profile.
"""

import argparse
import functools
from typing import Any

import torch

import gg_runtime

from . import layer_kernels
from .arguments import parsed
from .layer_shapes import LAYERS, LayerShape, layer_named
from .layer_workload import LayerWorkload
from .measured import checked, rested_and_hot, right
from .peers import reason
from .timing import Graph

ROWS = ("Qwen3-30B", "DeepSeek-V3", "Qwen3-30B decode")
BF16, FP8 = "bfloat16", "fp8"
ASKED, AIM = 1.35, 1.7  # times as fast as in bfloat16, of layers that are no decoding
BLOCK, LARGEST = 128, 448.0
TOLERANCES = {BF16: 1e-2, FP8: 8e-2}  # of e4m3 weights and rows, each rounded by up to 1/16


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


def plans(own: LayerWorkload) -> dict[str, tuple[gg_runtime.ExpertsPlan, torch.Tensor]]:
    """Name -> the layer and its output."""
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
        made[name] = gg_runtime.ExpertsPlan(own.x, first, second, *routing, **options, **memory), out
    return made


def measure(name: str, shape: LayerShape) -> dict[str, Any]:
    own = LayerWorkload(shape)
    made = plans(own)

    def error_of(one: str) -> float:
        found = float((made[one][1].float() - own.out).norm() / own.out.norm())
        if not found <= TOLERANCES[one]:
            raise ArithmeticError(f"relative error {found:.1e}, at most {TOLERANCES[one]:.0e} is right")
        return found

    def maker(one: str) -> tuple[Graph, float]:
        plan, out = made[one]
        return checked([plan.run], lambda: [out], lambda: error_of(one))

    graphs, row = right({one: functools.partial(maker, one) for one in made})
    row |= rested_and_hot(graphs) | {"layer": name, "variants": made[FP8][0].variants, "kernels": {}}
    for one, graph in graphs.items():
        try:
            row["kernels"][one] = layer_kernels.parts_us(graph)
        except Exception as error:  # the figures still count
            row["kernels"][one] = reason(error)
    return row


def told(row: dict[str, Any]) -> str:
    us, hot = row["us"], row["hot_us"]
    lines = [f"{row['layer']}: {' · '.join(row['variants'])}"]
    for one in us:
        times = f"; x{us[BF16] / us[one]:.3f}, hot x{hot[BF16] / hot[one]:.3f}" if BF16 in us else ""
        lines.append(f"  {one:8} {us[one]:9.1f} us, hot {hot[one]:9.1f}{times}; error {row['error'][one]:.2e}")
    lines += [f"  {one}: {kernels}" for one, kernels in row["kernels"].items()]
    lines += [f"  {one} FAILED: {why}" for one, why in row["failed"].items()]
    if "decode" not in row["layer"] and us.keys() >= {BF16, FP8}:
        lines.append(f"  {us[BF16] / us[FP8]:.3f} times as fast as in bfloat16, {ASKED} is asked, {AIM} the aim")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fp8_layer", description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(LAYERS)}; or ROW@TOKENS")
    names = parsed(parser).rows or ROWS
    print(f"{torch.cuda.get_device_name()}, gg_runtime {gg_runtime.__version__}, torch {torch.__version__}")
    for name in names:
        print(told(measure(name, layer_named(name))), flush=True)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
