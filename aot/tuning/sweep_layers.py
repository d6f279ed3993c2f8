"""Measures every ragged kernel on MoE layers, from few rows to many. Needs torch and gg_runtime, never Triton.

Some thousand products of milliseconds: nothing is allocated or checked between them, and only those rest that could
reach the power limit. All products lie in the same memory, a kernel's graph serves every split, as `offs` are read on
the device, and the kernels of a product take turns, so that each finds the GPU as warm as the others do.
"""

import functools
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import accumulate

from ..spec.variants import Config
from .layers import LOADS, MOST_WEIGHT_BYTES, Layer, rows_at
from .sweep_ragged import MOST_ROWS, RaggedMeasurement, candidates, slots

DTYPE = "bf16"
SPLITS = ("multinomial", "zipf")
LARGEST_FLOP = 2e12  # of a product, about three milliseconds
LEAST_LAUNCHES, MOST_LAUNCHES = 2, 40  # of a graph
REPLAY_US = 2000  # that a graph should take
REPEATS = 3
REST = 3  # times as long as a replay, after it, of products that run at more than
HOT_TFLOPS = 300  # or kernels that take little energy would win, which are up to 7 % slower on a GPU that is not hot


@dataclass(frozen=True)
class Product:
    """[rows, depth] @ [experts, depth, columns] in bf16."""

    experts: int
    columns: int
    depth: int
    rows: int

    @property
    def flop(self) -> int:
        return 2 * self.rows * self.columns * self.depth

    @property
    def expert_bytes(self) -> int:
        return 2 * self.columns * self.depth

    def copies(self) -> int:
        """Of the weights, so that a pass over those that are read leaves nothing of them in L2, or all that fit."""
        from benchmarks.moe_workload import L2_PASSES
        from benchmarks.workload import copies_for

        used = min(sum(map(bool, group_rows(how, self.experts, self.rows))) for how in SPLITS)
        there_is_room_for = int(MOST_WEIGHT_BYTES / (self.experts * self.expert_bytes))
        return min(copies_for(used * self.expert_bytes, L2_PASSES), there_is_room_for, MOST_LAUNCHES)


@functools.cache
def group_rows(how: str, experts: int, rows: int) -> tuple[int, ...]:
    from benchmarks.shapes import split

    return split(how, experts, rows, seed=rows)


def products(work: Iterable[Layer]) -> Iterator[Product]:
    """Every load of a layer that is not too large, then the next layer."""
    for layer in work:
        for product in (Product(*layer, rows_at(load, layer[0])) for load in LOADS):
            if product.rows <= MOST_ROWS and product.flop <= LARGEST_FLOP:
                yield product


def sweep(sm: int, seconds: float, work: Iterable[Layer], say: Callable[[str], None]) -> list[RaggedMeasurement]:
    """Every candidate on every load of the layers in every split, until the time is up."""
    deadline = time.monotonic() + seconds
    everything = list(products(work))
    kernels = {variant.name: variant for variant in candidates(sm, DTYPE)}
    slots_of = {name: slots(name) for name in kernels}
    memory = Memory(everything)
    found: list[RaggedMeasurement] = []
    for done, product in enumerate(everything):
        if time.monotonic() > deadline:
            say(f"the time is up after {done} of {len(everything)} loads of layers")
            break
        for how, times in times_us(memory, product, list(kernels)).items():
            split = group_rows(how, product.experts, product.rows)
            found += [
                RaggedMeasurement(
                    DTYPE, how, split, product.columns, product.depth,
                    kernels[name].kernel, kernels[name].alignment, kernels[name].config, slots_of[name], round(us, 3),
                )
                for name, us in times.items()
            ]  # fmt: skip
    return found


class Memory:
    """Of the largest product and of its weights' copies: the others use the first part of it."""

    def __init__(self, everything: list[Product]):
        import torch

        def numbers(count: int):
            return torch.empty(count, device="cuda", dtype=torch.bfloat16).normal_()

        self.A = numbers(max(product.rows * product.depth for product in everything))
        self.W = numbers(int(MOST_WEIGHT_BYTES) // 2)
        self.C = numbers(max(product.rows * product.columns for product in everything))
        self.offs = torch.empty(max(product.experts for product in everything), device="cuda", dtype=torch.int32)
        self.capturing = torch.cuda.Stream()

    def split(self, how: str, product: Product) -> None:
        import torch

        ends = list(accumulate(group_rows(how, product.experts, product.rows)))
        self.offs[: product.experts].copy_(torch.tensor(ends, dtype=torch.int32))

    def calls(self, product: Product, variant: str) -> list[Callable]:
        """The product on each copy of its weights."""
        import gg_runtime

        weights = (product.copies(), product.experts, product.columns, product.depth)
        A = self.A[: product.rows * product.depth].view(product.rows, product.depth)
        C = self.C[: product.rows * product.columns].view(product.rows, product.columns)
        options = {"offs": self.offs[: product.experts], "out": C, "variant": variant}
        return [
            functools.partial(gg_runtime._C.grouped_mm, A, W.mT, **options)
            for W in self.W[: math.prod(weights)].view(weights)
        ]


class Replay:
    """A graph of launches that takes about REPLAY_US and goes round over all calls."""

    def __init__(self, calls: list[Callable], stream):
        import torch

        from benchmarks.timing import elapsed_us

        wanted = int(REPLAY_US / elapsed_us(calls[0]))
        self.launches = max(LEAST_LAUNCHES, len(calls), min(MOST_LAUNCHES, wanted))
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):  # torch.cuda.graph gives all cached memory back first, which takes longer
            self.graph.capture_begin()
            for index in range(self.launches):
                calls[index % len(calls)]()
            self.graph.capture_end()

    def us(self, rest: float = 0) -> float:
        from benchmarks.timing import elapsed_us

        us = elapsed_us(self.graph.replay)
        time.sleep(rest * us / 1e6)
        return us / self.launches


def times_us(memory: Memory, product: Product, kernels: list[str]) -> dict[str, dict[str, float]]:
    """By split and kernel: the first replay, and the median of those that follow it where it comes near the best."""
    from benchmarks.unseen import NEAR

    memory.split(SPLITS[0], product)
    replays = {name: Replay(memory.calls(product, name), memory.capturing) for name in kernels}
    times = {}
    for how in SPLITS:
        memory.split(how, product)
        first = {name: replay.us() for name, replay in replays.items()}
        best = min(first.values())
        near = [name for name in kernels if first[name] < NEAR * best]
        rest = REST if product.flop / best / 1e6 > HOT_TFLOPS else 0
        rounds = [[replays[name].us(rest) for name in near] for _ in range(REPEATS)]
        times[how] = first | {name: statistics.median(column) for name, column in zip(near, zip(*rounds))}
    return times


def to_json(measurements: Iterable[RaggedMeasurement]) -> list[dict]:
    """By kernel; [split, experts, rows, columns, depth, us] stand for what `group_rows` draws, which is much longer."""
    kernels = defaultdict(list)
    for m in measurements:
        times = kernels[m.dtype, m.kernel, m.alignment, m.config, m.slots]
        times.append([m.split, m.experts, m.rows, m.columns, m.depth, m.us])
    return [
        {"dtype": dtype, "kernel": kernel, "alignment": alignment, "config": asdict(config), "slots": slots, "us": us}
        for (dtype, kernel, alignment, config, slots), us in kernels.items()
    ]


def from_json(kernels: Iterable[dict]) -> list[RaggedMeasurement]:
    return [
        RaggedMeasurement(
            row["dtype"], split, group_rows(split, experts, rows), columns, depth,
            row["kernel"], row["alignment"], Config(**row["config"]), row["slots"], us,
        )
        for row in kernels
        for split, experts, rows, columns, depth, us in row["us"]
    ]  # fmt: skip
