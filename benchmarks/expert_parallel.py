"""The layer of docs/expert_parallel.py, forward and backward: our experts and torch's own behind the same exchange.

    python -m torch.distributed.run --nproc-per-node 2 -m benchmarks.expert_parallel [layer ...] [--graphs]

Each process has the tokens of a row of `layer_shapes` and its part of the experts, so that it multiplies as much as one
GPU does in that row. "any": sizes are exchanged, and the host waits once. "fixed": a capacity of as many tokens as
there are, so that nothing is dropped. "exchange": both ways without experts. Times are of the slowest process, launches
one behind the other; with --graphs those of "fixed" under a CUDA graph too. Outputs and gradients of an
eager step are checked by float32, expert by expert. Variants are timed one after the other.
"""

import argparse
import functools
import importlib
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from .arguments import parsed
from .layer_shapes import LAYERS, LayerShape
from .layer_workload import activated
from .peers import reason
from .timing import Call, elapsed_us
from .train import QUACK, relative

sys.path.append(str(Path(__file__).resolve().parents[1] / "docs"))
example: Any = importlib.import_module("expert_parallel")

TOLERANCE = 2e-2  # of the norm of a row or a matrix: as `train`, and a rounding more for each process
REPEATS = 5
REPLAY_US = 35_000
Step = Callable[[], tuple[torch.Tensor, ...]]


def kept_first(ids: torch.Tensor, expert_map: torch.Tensor, experts: int) -> tuple[torch.Tensor, ...]:
    """Slots sorted by the experts here, the dropped ones last: (order, ends, how many are kept)."""
    known = (ids >= 0) & (ids < len(expert_map))
    local = torch.where(known, expert_map[ids.clamp(0, len(expert_map) - 1)], -1).flatten()
    group, order = torch.sort(torch.where(local >= 0, local, experts), stable=True)
    each = torch.arange(experts, device=ids.device, dtype=group.dtype)
    ends = torch.searchsorted(group, each, right=True, out_int32=True)
    return order, ends, ends[-1]


def computed(
    x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, weights: torch.Tensor, order: torch.Tensor, ends: torch.Tensor
) -> torch.Tensor:
    """Rows past the last end, which torch leaves as they are, are masked: in the gradients too."""
    slots = weights.shape[1]
    places = torch.arange(len(order), device=x.device)
    inside = (places < ends[-1])[:, None]
    rows = torch.where(inside, x[order // slots], 0)
    h = activated(torch.nn.functional.grouped_mm(rows, w1, offs=ends), "swiglu", "gate_first")
    y = torch.nn.functional.grouped_mm(torch.where(inside, h, 0), w2, offs=ends)
    place = torch.full((weights.numel(),), len(order), device=x.device).scatter(0, order, places).view(weights.shape)
    of_slots = torch.where((place < ends[-1])[..., None], y[place.clamp(max=len(order) - 1)], 0)
    return (of_slots * weights[..., None]).sum(1).to(x.dtype)


def torch_masked(x: Any, w1: Any, w2: Any, weights: Any, ids: Any, *, expert_map: Any) -> torch.Tensor:
    """Dropped slots are gathered and masked, so that no size has to be known."""
    order, ends, _ = kept_first(ids, expert_map, len(w1))
    return computed(x, w1, w2, weights, order, ends)


def torch_trimmed(
    x: Any, w1: Any, w2: Any, weights: Any, ids: Any, *, expert_map: Any, rest: Any = computed
) -> torch.Tensor:
    """Dropped slots are cut off: the host waits once more."""
    order, ends, kept = kept_first(ids, expert_map, len(w1))
    return rest(x, w1, w2, weights, order[: kept.item()], ends)


def nothing(x: Any, w1: Any, w2: Any, weights: Any, ids: Any, *, expert_map: Any) -> torch.Tensor:
    return x


class Workload:
    """Tokens and experts of this process, what all processes have, and what must come out, in float32."""

    def __init__(self, shape: LayerShape, mesh: Any, device: torch.device):
        self.shape, self.mesh, self.device = shape, mesh, device
        self.processes, self.rank = mesh.size(), mesh.get_local_rank()
        local, inner, hidden = shape.experts // self.processes, shape.intermediate, shape.hidden
        generator = torch.Generator(device=device).manual_seed(self.rank)

        def normal(*sizes: int, factor: float = 1.0) -> torch.Tensor:
            return torch.randn(*sizes, device=device, dtype=torch.bfloat16, generator=generator).mul_(factor)

        self.x, self.gradient = normal(shape.tokens, hidden), normal(shape.tokens, hidden)
        self.up, self.down = normal(local, 2 * inner, hidden, factor=hidden**-0.5), normal(local, hidden, inner)
        self.down *= inner**-0.5
        chosen = torch.rand(shape.tokens, shape.experts, device=device, generator=generator).topk(shape.top_k)
        self.ids, self.weights = chosen.indices.int(), chosen.values.softmax(-1)
        self.exact = self.references()

    def references(self) -> list[torch.Tensor]:
        """out, dx, d weights of the own tokens; gradients of the own experts."""
        mesh, tokens = self.mesh, self.shape.tokens
        x, gradient, ids, weights = (
            example.joined(mesh, one) for one in (self.x, self.gradient, self.ids, self.weights)
        )
        sums = [torch.zeros_like(x, dtype=torch.float32) for _ in range(2)] + [torch.zeros_like(weights)]
        own = [torch.zeros_like(one, dtype=torch.float32) for one in (self.up, self.down)]
        for expert in range(len(self.up)):
            token, slot = torch.nonzero(ids == expert + self.rank * len(self.up), as_tuple=True)
            tensors = (x[token], self.up[expert], self.down[expert], weights[token, slot])
            row, up, down, weight = leaves = [one.detach().float().requires_grad_() for one in tensors]
            y = (activated(row @ up.T, "swiglu", "gate_first") @ down.T) * weight[:, None]
            of_row, own[0][expert], own[1][expert], of_weight = torch.autograd.grad(y, leaves, gradient[token].float())
            sums[0].index_add_(0, token, y.detach())
            sums[1].index_add_(0, token, of_row)
            sums[2][token, slot] = of_weight
        for one in sums:
            dist.all_reduce(one, group=mesh.get_group())
        return [one[self.rank * tokens : (self.rank + 1) * tokens].clone() for one in sums] + own

    def step(self, capacity: int | None, experts: Any) -> Step:
        layer = example.ExpertParallel(self.up, self.down, self.mesh, capacity=capacity, **experts)
        x, weights = self.x.clone().requires_grad_(), self.weights.clone().requires_grad_()
        leaves = (x, weights, layer.up, layer.down)

        def step() -> tuple[torch.Tensor, ...]:
            out = layer(x, weights, self.ids)
            # An exchange without experts uses neither their weights nor the router's.
            return out.detach(), *torch.autograd.grad(out, leaves, self.gradient, allow_unused=True)

        return step

    def check(self, found: tuple[torch.Tensor, ...]) -> float:
        """The largest relative error of a row of out or dx, and of the other gradients."""
        errors = [relative(one, right, dim=1) for one, right in zip(found[:2], self.exact[:2])]
        errors += [relative(one, right) for one, right in zip(found[2:], self.exact[2:])]
        if not max(errors) <= TOLERANCE:
            raise ArithmeticError(f"relative errors {errors}, at most {TOLERANCE:.0e} are right")
        return max(errors)


def captured(step: Step) -> Call:
    """NCCL's own thread asks for events meanwhile: only this thread is checked."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        step()
    return graph.replay


def slowest_us(call: Call, mesh: Any, device: torch.device) -> float:
    """Of a call, one behind the other; the median of repeats, each that of the slowest process."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    once = agreed(elapsed_us(call), mesh, device)
    count = max(2, min(50, int(REPLAY_US / once)))

    def work() -> None:
        for _ in range(count):
            call()

    times = []
    for _ in range(REPEATS):
        dist.barrier(group=mesh.get_group())
        torch.cuda.synchronize()
        times.append(agreed(elapsed_us(work), mesh, device) / count)
    return statistics.median(times)


def agreed(us: float, mesh: Any, device: torch.device) -> float:
    """The largest of all processes."""
    worst = torch.tensor(us, device=device)
    dist.all_reduce(worst, dist.ReduceOp.MAX, group=mesh.get_group())
    return worst.item()


def variants(tokens: int) -> dict[str, tuple[int | None, dict[str, Any]]]:
    """name -> (capacity, what `ExpertParallel` takes besides)."""
    masked = torch.compile(torch_masked, fullgraph=True, dynamic=False)
    trimmed = functools.partial(torch_trimmed, rest=torch.compile(computed, fullgraph=True, dynamic=False))
    return {
        "ours any": (None, {}),
        "ours fixed": (tokens, {}),
        "torch any": (None, {"experts": masked}),
        "torch trimmed": (None, {"experts": trimmed}),
        "torch fixed": (tokens, {"experts": masked}),
        "exchange any": (None, {"experts": nothing}),
        "exchange fixed": (tokens, {"experts": nothing}),
    }


def measure(name: str, mesh: Any, device: torch.device, graphs: bool) -> dict[str, Any]:
    """All processes take the same way: a failure of one ends the run."""
    shape = LAYERS[name]
    work = Workload(shape, mesh, device)
    row: dict[str, Any] = {"layer": name, "us": {}, "graph_us": {}, "error": {}, "eager": {}}
    for which, (capacity, options) in variants(shape.tokens).items():
        step = work.step(capacity, options)
        if options.get("experts") is not nothing:
            row["error"][which] = agreed(work.check(step()), mesh, device)
        row["us"][which] = slowest_us(step, mesh, device)
        if graphs and capacity is not None:
            try:
                row["graph_us"][which] = slowest_us(captured(step), mesh, device)
            except RuntimeError as error:
                row["eager"][which] = reason(error)
    return row


def table(row: dict[str, Any]) -> str:
    us, graph = row["us"], row["graph_us"]
    best = min((name for name in us if name.startswith("torch")), key=lambda name: us[name])
    lines = [f"{row['layer']}"]
    for name, time in us.items():
        under = f"{graph[name]:10.1f}" if name in graph else f"{'-':>10}"
        error = f"{row['error'][name]:9.1e}" if name in row["error"] else f"{'-':>9}"
        lines.append(f"  {name:15} {time:10.1f} {under} {error}")
    fastest = min(us["ours any"], us["ours fixed"])
    lines.append(f"  × {best}: any {us[best] / us['ours any']:.2f}, the faster of ours {us[best] / fastest:.2f}")
    lines += [f"  {name} under a graph: {why}" for name, why in row["eager"].items()]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("layers", nargs="*", metavar="layer", help=f"of {', '.join(QUACK)}; all by default")
    parser.add_argument("--graphs", action="store_true", help="those of a fixed capacity under a CUDA graph too")
    arguments = parsed(parser)
    if unknown := set(arguments.layers) - set(QUACK):
        parser.error(f"no layer is called {', '.join(sorted(unknown))}; there are {', '.join(QUACK)}")
    mesh, device = example.start()
    first = mesh.get_local_rank() == 0
    if first:
        print(f"{mesh.size()} × {torch.cuda.get_device_name()}, torch {torch.__version__}; microseconds of forward and")
        print(f"backward{'':9} {'eager':>10} {'graph':>10} {'error':>9}", flush=True)
    for name in arguments.layers or QUACK:
        row = measure(name, mesh, device, arguments.graphs)
        if first:
            print(table(row), flush=True)
        torch._dynamo.reset()
        torch.cuda.empty_cache()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
