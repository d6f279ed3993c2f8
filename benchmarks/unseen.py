"""What the choice of a kernel loses, to the best of all that could run, on ragged products that no tuner saw."""

import functools
import math
import random
from collections.abc import Mapping

import torch

import gg_runtime

from .moe import prepare
from .moe_peers import RaggedPeer, in_place
from .moe_workload import Launch, RaggedCopy, RaggedWorkload
from .peers import reason
from .shapes import RaggedShape, split
from .timing import Timed, elapsed_us, in_any_order, interleaved_us

SHAPES = 40
SEED = 40
MOST_ROWS = 131072
MOST_WEIGHT_BYTES = 8e9
NEAR = 1.15  # times the best of the first replays: what takes more is not timed again


def log_uniform(numbers: random.Random, least: float, most: float) -> float:
    return math.exp(numbers.uniform(math.log(least), math.log(most)))


def shapes() -> list[RaggedShape]:
    """1-512 experts, 1-8192 rows an expert, N and K multiples of 64 from 256 to 28672; the same each time."""
    numbers, found = random.Random(SEED), []
    while len(found) < SHAPES:
        experts = round(log_uniform(numbers, 1, 512))
        rows = round(experts * log_uniform(numbers, 1, 8192))
        columns, depth = (64 * round(log_uniform(numbers, 4, 448)) for _ in range(2))
        if rows <= MOST_ROWS and 2 * experts * columns * depth <= MOST_WEIGHT_BYTES:
            how = ("uniform", "multinomial", "zipf", "half-empty")[len(found) % 4]
            found.append(RaggedShape(how, split(how, experts, rows, seed=len(found)), columns, depth))
    return found


def forced(copy: RaggedCopy, variant: str) -> Launch:
    options = {"offs": copy.offs, "out": copy.C, "variant": variant}
    call = functools.partial(gg_runtime._C.grouped_mm, copy.A, copy.B, **options)
    return in_place(call, copy)


def times_us(workload: RaggedWorkload, variants: list[str], choice: str) -> dict[str, float]:
    """Of the choice and of every variant whose first replays come near the best."""
    peers = [RaggedPeer(name, functools.partial(forced, variant=name)) for name in variants]
    graphs = {peer.name: prepare(peer, workload)[0] for peer in peers}
    near = near_best(graphs, {choice})
    return dict(zip(near, interleaved_us([graphs[name] for name in near])))


def near_best(graphs: Mapping[str, Timed], always: set[str]) -> list[str]:
    """The names of `always` and of each graph that comes near the best by the shortest of three replays."""
    named, first = list(graphs), dict.fromkeys(graphs, math.inf)
    for _ in range(3):
        for name in (named[i] for i in in_any_order(named)):
            first[name] = min(first[name], elapsed_us(graphs[name].run) / graphs[name].launches)
    return [name for name in graphs if name in always or first[name] < NEAR * min(first.values())]


def measure(shape: RaggedShape) -> dict:
    """Microseconds of the choice and of the best, and what the one loses to the other."""
    workload = RaggedWorkload(shape)
    copy = workload.copies[0]
    explanation = gg_runtime.explain(copy.A, copy.B, out=copy.C, offs=copy.offs)
    usable = [candidate["variant"] for candidate in explanation.candidates if not candidate["ruled_out"]]
    choice = str(explanation.variant)  # None is for products without an output
    times = times_us(workload, usable, choice)
    best = min(times, key=lambda variant: times[variant])
    return {
        "variants": len(usable), "choice": choice, "choice_us": times[choice], "best": best, "best_us": times[best],
        "loss_percent": 100 * (times[choice] / times[best] - 1),
    }  # fmt: skip


def run() -> list[dict]:
    rows = []
    for shape in shapes():
        about = {key: getattr(shape, key) for key in ("experts", "rows", "columns", "depth")} | {"split": shape.kind}
        try:
            rows.append(about | measure(shape))
        except Exception as error:  # a kernel that is wrong is a result; the other shapes still count
            rows.append(about | {"failed": reason(error)})
            print(f"unseen {about}: {rows[-1]['failed']}")
        torch.cuda.empty_cache()
    return rows
