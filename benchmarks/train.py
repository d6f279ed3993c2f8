"""Layers that train: forward and backward beside the layer that torch compiles, what both keep, our backward's parts.

ScatterMoE joins where its package is there (`scattermoe`, kernels-community/scattermoe). Its routing is not timed.

Under a graph where the capture works, else eager: "eager" of a row names those. Whole layers are checked, by
float32 expert by expert, over outputs that were poisoned; the parts of our backward are not.
"""

import functools
import gc
import importlib
import sys
from collections.abc import Callable
from typing import Any

import torch

import gg_runtime
from gg_runtime.torch import experts

from . import layer_torch
from .layer_musts import Must
from .layer_shapes import LAYERS, LayerShape
from .layer_workload import LayerWorkload, activated
from .measured import error_of, rested_and_hot, right
from .peers import reason
from .timing import Call, Graph, elapsed_us, enough, interleaved_us

try:
    scattermoe: Any = importlib.import_module("scattermoe")
except ImportError:
    scattermoe = None

OURS, OF_PARTS, SCATTERMOE = "fused_experts", "parts", "ScatterMoE"
UP, DOWN = "up", "down"  # our plain products, of as much FLOP as dx and dW1, as the down gradient and dW2
DGATED, DX, DW1, DW2, COMBINE = "dgated", "dx", "dW1", "dW2", "combine"
PARTS = {DGATED: DOWN, DX: UP, DW1: UP, DW2: DOWN}
TOLERANCE = 1.5e-2  # of the norm of a row or a matrix: five roundings to bfloat16, of 1.7e-3 each
INPUTS = ("x", "w1", "w2", "weights")

# quack 0.4.1 on an H200 and our plain products of that run, in microseconds.
QUACK = {
    "Qwen3-30B": {DGATED: 290, DX: 391, DW1: 436, DW2: 224, UP: 355, DOWN: 185},
    "7B": {DGATED: 401, DX: 472, DW1: 485, DW2: 261, UP: 443, DOWN: 267},
    "30B": {DGATED: 1829, DX: 3083, DW1: 3178, DW2: 1723, UP: 2935, DOWN: 1576},
    "120B": {DGATED: 3603, DX: 6057, DW1: 6279, DW2: 3029, UP: 5713, DOWN: 2839},
    "DeepSeek-V3": {DGATED: 1458, DX: 2551, DW1: 2572, DW2: 1367, UP: 2447, DOWN: 1233},
}
# How many times faster than the best compiled torch layer; than quack's products and a combine as fast as ours.
TIMES_TORCH = {"Qwen3-30B": 1.4, "7B": 1.8, "30B": 1.45, "120B": 1.06, "DeepSeek-V3": 1.06}
TIMES_QUACK = {"Qwen3-30B": 1.1, "7B": 1.1, "30B": 1.1, "120B": 1.0, "DeepSeek-V3": 1.0}


class Eager:
    """What Graph is, of a call that cannot be captured."""

    def __init__(self, call: Call, launches: int):
        self.call, self.launches = call, launches

    def run(self) -> None:
        for _ in range(self.launches):
            self.call()


class Training:
    """A layer whose tensors require gradients, the gradient that comes in, and what each gradient is in float32."""

    def __init__(self, shape: LayerShape):
        self.own = own = LayerWorkload(shape)
        generator = torch.Generator(device="cuda").manual_seed(1)
        self.gradient = torch.randn(own.x.shape, device="cuda", dtype=own.x.dtype, generator=generator)
        self.leaves = [getattr(own, name).requires_grad_() for name in INPUTS]

    def step(self, forward: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(forward(), self.leaves, self.gradient)

    def forward(self) -> torch.Tensor:
        own, shape = self.own, self.own.shape
        return gg_runtime.fused_experts(
            own.x, own.w1, own.w2, own.weights, own.ids, activation=shape.activation, gate_up=shape.gate_up
        )

    def check(self, found: tuple[torch.Tensor, ...]) -> float:
        """The largest relative error of a token's dx, of an expert's dW1 or dW2, and of all d weights."""
        own, (of_x, of_w1, of_w2, of_weights) = self.own, found
        right_x, right_weights = torch.zeros_like(of_x, dtype=torch.float32), torch.zeros_like(of_weights).flatten()
        worst = 0.0
        for expert, (start, end) in enumerate(zip([0, *own.ends], own.ends)):
            slot = own.routing.slot[start:end].long()
            right = self.exact(expert, slot)
            right_x.index_add_(0, slot // own.shape.top_k, right[0])
            right_weights[slot] = right[3]
            for got, want in ((of_w1[expert], right[1]), (of_w2[expert], right[2])):
                worst = max(worst, relative(got, want))
        worst = max(worst, relative(of_weights.flatten(), right_weights), relative(of_x, right_x, dim=1))
        if not worst <= TOLERANCE:
            raise ArithmeticError(f"relative error {worst:.1e}, at most {TOLERANCE:.1e} is right")
        return worst

    def exact(self, expert: int, slot: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Gradients of the rows of one expert, in float32."""
        own, token = self.own, slot // self.own.shape.top_k
        tensors = (own.x[token], own.w1[expert], own.w2[expert], own.weights.flatten()[slot])
        row, up, down, weight = leaves = [tensor.detach().float().requires_grad_() for tensor in tensors]
        inner = activated(row @ up, own.shape.activation, own.shape.gate_up)
        return torch.autograd.grad((inner @ down) * weight[:, None], leaves, self.gradient[token].float())


def relative(got: torch.Tensor, want: torch.Tensor, dim: int | None = None) -> float:
    """Of the whole, or of the worst row where `dim` is 1. NaN counts as infinite."""
    norm = torch.linalg.vector_norm
    error = norm(got.float() - want, dim=dim) / norm(want, dim=dim).clamp_min(1e-6)
    return float(torch.nan_to_num(error, nan=float("inf")).max())


def saved_bytes(forward: Callable[[], torch.Tensor], parameters: tuple[torch.Tensor, ...]) -> int:
    """Of what autograd keeps, storage by storage, without parameters."""
    storages: dict[int, int] = {}

    def see(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(see, lambda tensor: tensor):
        out = forward()
    own = {parameter.untyped_storage().data_ptr() for parameter in parameters}
    own.add(out.untyped_storage().data_ptr())
    return sum(size for pointer, size in storages.items() if pointer not in own)


def least_bytes(shape: LayerShape) -> int:
    """x, the pre-activation and the routing: float32 weights, three int32 numbers of each row, the ends."""
    return 2 * shape.tokens * shape.hidden + shape.preactivation_bytes + 16 * shape.rows + 4 * shape.experts


def parts(training: Training) -> dict[str, Call]:
    """Our plain products, and the parts of our backward by themselves."""
    own, shape, gradient = training.own, training.own.shape, training.gradient
    x, w1, w2 = (tensor.detach() for tensor in (own.x, own.w1, own.w2))
    ends, token, slot, inverse = own.routing
    z = own.z.bfloat16()
    kept = experts.Kept(x, z, w1, w2, own.weights.detach(), None, ends, token, slot, inverse)
    layer = experts.Layer(shape.activation, shape.gate_up, None, 1.0, False)
    of_weights = torch.zeros_like(own.weights)
    dz, h = experts.through_the_activation(layer, kept, gradient, of_weights, keeps_h=True)
    return {
        UP: lambda: gg_runtime.grouped_mm(own.gathered, w1, offs=ends),
        DOWN: lambda: gg_runtime.grouped_mm(own.inner, w2, offs=ends),
        DGATED: lambda: experts.through_the_activation(layer, kept, gradient, of_weights, keeps_h=True),
        DX: lambda: gg_runtime.grouped_mm(dz, w1.mT, offs=ends),
        DW1: lambda: experts.of_weight(x, token, dz, None, ends, w1, None),
        DW2: lambda: experts.of_weight(h, None, gradient, token, ends, w2, None),
        COMBINE: lambda: gg_runtime.combine(own.rows, inverse),
    }


def prepared(call: Call, row: dict, name: str) -> Graph | Eager:
    try:
        return Graph([call], least=enough(call))
    except Exception as error:  # torch's compiled backward may not be captured
        row["eager"][name] = reason(error)
        torch.cuda.synchronize()
        call()
        return Eager(call, max(2, int(35_000 / elapsed_us(call))))


def layers(training: Training) -> dict[str, Callable[[], torch.Tensor]]:
    found: dict[str, Callable[[], torch.Tensor]] = {OURS: training.forward}
    for name, combine in layer_torch.TRAINED.items():
        found[name] = layer_torch.layer(training.own, combine)
    if scattermoe:
        found[SCATTERMOE] = scattermoe_layer(training.own)
    return found


def scattermoe_layer(own: LayerWorkload) -> Callable[[], torch.Tensor]:
    """Its routing waits for the host, which a graph does not allow: it is made here, and not timed."""
    shape = own.shape
    routing = scattermoe.flatten_sort_count(own.ids.long(), num_experts=shape.experts)

    @torch.compile(fullgraph=True, dynamic=False)
    def activation(z: torch.Tensor) -> torch.Tensor:
        return activated(z, shape.activation, shape.gate_up)

    def forward() -> torch.Tensor:
        z = scattermoe.parallel_linear(own.x, own.w1, shape.top_k, *routing, grouped_out=True)
        gates = own.weights.to(own.x.dtype)
        return scattermoe.parallel_linear(activation(z), own.w2, 1, *routing, gates=gates, grouped_in=True)

    return forward


def measure(name: str) -> dict:
    row: dict[str, Any] = {"layer": name, "eager": {}, "saved": {}}
    training = Training(LAYERS[name])

    def made(which: str, forward: Callable[[], torch.Tensor]) -> tuple[Graph | Eager, float]:
        gradients: list[torch.Tensor] = []

        def step() -> None:
            gradients[:] = training.step(forward)

        row["saved"][which] = saved_bytes(forward, (training.own.w1, training.own.w2))
        graph = prepared(step, row, which)
        return graph, error_of(graph, lambda: gradients, lambda: training.check(tuple(gradients)))

    makers = {which: functools.partial(made, which, forward) for which, forward in layers(training).items()}
    timed, of_layers = right(makers)
    row |= of_layers | rested_and_hot(timed)
    timed.clear()
    try:
        graphs = {part: Graph([call], least=enough(call)) for part, call in parts(training).items()}
        row["parts_us"] = dict(zip(graphs, interleaved_us(list(graphs.values()))))
    except Exception as error:
        row["failed"][OF_PARTS] = reason(error)
    return row


def run() -> list[dict]:
    rows = []
    for name in QUACK:
        try:
            rows.append(measure(name))
        except Exception as error:  # no workload, no memory
            rows.append({"layer": name, "failed": {OURS: reason(error)}})
        print(progress(rows[-1]), file=sys.stderr, flush=True)
        torch._dynamo.reset()  # else the next row's sizes would count as recompilations
        gc.collect()
        torch.cuda.empty_cache()
    return rows


def quack_us(name: str, us: dict[str, float]) -> dict[str, float]:
    """What quack would take in this run: by its ratio to our plain product of the same FLOP."""
    known = QUACK[name]
    return {part: known[part] / known[plain] * us[plain] for part, plain in PARTS.items()}


def musts(row: dict) -> list[Must]:
    """Those whose figures are there."""
    name, us, found = row["layer"], row.get("us", {}), []
    if parts_us := row.get("parts_us"):
        theirs = quack_us(name, parts_us)
        for part, plain in PARTS.items():
            found.append(Must(f"{part} / {plain}", parts_us[part] / parts_us[plain], theirs[part] / parts_us[plain]))
        ours, combine = sum(parts_us[part] for part in PARTS), parts_us[COMBINE]
        faster = (sum(theirs.values()) + combine) / (ours + combine)
        found.append(Must("× quack with our combine", faster, TIMES_QUACK[name], at_least=True))
    best = layer_torch.best_torch(us)
    if OURS in us and best:
        found.append(Must("× torch", us[best] / us[OURS], TIMES_TORCH[name], at_least=True))
    if OURS in row.get("saved", {}):
        found.append(Must("saved / least", row["saved"][OURS] / least_bytes(LAYERS[name]), 1.02))
    return found


def progress(row: dict) -> str:
    told = ", ".join(f"{name} {us:.0f} us" for name, us in row.get("us", {}).items())
    return f"{row['layer']}: {told or 'not timed'}" + "".join(f"; {k} failed: {v}" for k, v in row["failed"].items())


def table(rows: list[dict]) -> str:
    """Forward and backward in microseconds, rested and hot, GiB that are kept, our parts; then each must."""
    columns = (OURS, "torch", SCATTERMOE, "hot", "hot torch", f"hot {SCATTERMOE}", "GiB", "torch GiB")
    columns += (UP, DOWN, *PARTS, COMBINE)
    lines = [f"{'train':12}" + "".join(f" {name:>{max(9, len(name))}}" for name in columns)]
    asked = []
    for row in rows:
        us, hot, saved, of_parts = (row.get(name, {}) for name in ("us", "hot_us", "saved", "parts_us"))
        best = layer_torch.best_torch(us) or ""
        figures = [us.get(OURS), us.get(best), us.get(SCATTERMOE)]
        figures += [hot.get(OURS), hot.get(layer_torch.best_torch(hot) or ""), hot.get(SCATTERMOE)]
        kept = [saved[name] / 2**30 if name in saved else None for name in (OURS, best)]
        times = [of_parts.get(name) for name in (UP, DOWN, *PARTS, COMBINE)]
        cells = [f"{one:.1f}" if one is not None else "-" for one in figures]
        cells += [f"{one:.3f}" if one is not None else "-" for one in kept]
        cells += [f"{one:.1f}" if one is not None else "-" for one in times]
        lines.append(f"{row['layer']:12}" + "".join(f" {c:>{max(9, len(n))}}" for c, n in zip(cells, columns)))
        asked.append(f"{row['layer']:12} " + " · ".join(map(str, musts(row))))
        asked += [f"{'':12} {what} eager: {why}" for what, why in row.get("eager", {}).items()]
        asked += [f"{'':12} {what} FAILED: {why}" for what, why in row["failed"].items()]
    return "\n".join([*lines, *asked])
