"""Measures the embedded ragged kernels on this machine's GPU. Needs torch and gg_runtime, never Triton."""

import functools
import itertools
import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass

from ..spec.variants import KERNELS, Config, Variant
from .sweep import embedded

LARGEST_FLOP = 6e12  # of a product, about ten milliseconds
MOST_ROWS = 131072
MOST_WEIGHT_BYTES = 8e9
EXPERTS = (1, 8, 32, 128, 512)
ROWS_EACH = (1, 4, 16, 64, 192, 512, 2048, 8192)
# N and K
SIZES = ((256, 512), (1536, 2048), (2048, 768), (2048, 4096), (4096, 7168), (7168, 2048), (28672, 4096), (512, 8192))
SPLITS = ("uniform", "multinomial", "zipf", "half-empty")


@dataclass(frozen=True)
class RaggedMeasurement:
    """Microseconds of a ragged product on a kernel; `group_rows` are the rows of each group."""

    dtype: str
    split: str
    group_rows: tuple[int, ...]
    columns: int
    depth: int
    kernel: str
    alignment: int
    config: Config
    slots: int  # CTAs that the GPU holds at once
    us: float

    @property
    def experts(self) -> int:
        return len(self.group_rows)

    @property
    def rows(self) -> int:
        return sum(self.group_rows)

    @property
    def shape(self) -> tuple:
        return self.dtype, self.group_rows, self.columns, self.depth

    def to_json(self) -> dict:
        return asdict(self)

    @classmethod
    def from_json(cls, row: dict) -> "RaggedMeasurement":
        return cls(**row | {"group_rows": tuple(row["group_rows"]), "config": Config(**row["config"])})


def products() -> Iterator:
    """What is measured, in this order until the time is up: the sizes in bf16, mixed, every third in e4m3 too."""
    from benchmarks.shapes import RaggedShape, split

    grid = []
    for index, (experts, each, (columns, depth)) in enumerate(itertools.product(EXPERTS, ROWS_EACH, SIZES)):
        rows, how = experts * each, SPLITS[index % len(SPLITS)]
        small = rows <= MOST_ROWS and 2 * experts * columns * depth <= MOST_WEIGHT_BYTES
        if small and 2 * rows * columns * depth <= LARGEST_FLOP:
            grid.append((how, split(how, experts, rows, seed=index), columns, depth))
    for index, shape in enumerate(random.Random(0).sample(grid, len(grid))):
        yield RaggedShape(*shape)
        if index % 3 == 0:
            yield RaggedShape(*shape, dtype="e4m3")


def candidates(sm: int, dtype: str) -> list[Variant]:
    """The aligned nt kernels with bf16 outputs."""
    wanted = (dtype, "bf16", "nt", 16)
    aligned = (v for v in embedded(sm) if (v.dtype, v.out, v.layout, v.alignment) == wanted)
    return [v for v in aligned if KERNELS[v.kernel].form == "grouped"]


def sweep(sm: int, seconds: float, work: Iterable, say: Callable[[str], None]) -> list[RaggedMeasurement]:
    """Every candidate on every product, until the time is up."""
    import torch

    from benchmarks.moe_workload import RaggedWorkload

    deadline = time.monotonic() + seconds
    found: list[RaggedMeasurement] = []
    for shape in work:
        if time.monotonic() > deadline:
            say(f"the time is up after {len(found)} measurements of ragged products")
            break
        kernels = {variant.name: variant for variant in candidates(sm, shape.dtype)}
        times = times_us(RaggedWorkload(shape), list(kernels))
        found += [
            RaggedMeasurement(
                shape.dtype, shape.kind, shape.group_rows, shape.columns, shape.depth,
                kernels[name].kernel, kernels[name].alignment, kernels[name].config, slots(name), us,
            )
            for name, us in times.items()
        ]  # fmt: skip
        torch.cuda.empty_cache()
    return found


def slots(kernel: str) -> int:
    import gg_runtime

    device = gg_runtime._C.device(0)
    return device["multiprocessors"] * gg_runtime._C.load(kernel, 0)["blocks_per_multiprocessor"]


def times_us(workload, kernels: list[str]) -> dict[str, float]:
    """Of every kernel: one replay, and the median of several where that comes near the best."""
    from benchmarks.moe import prepare
    from benchmarks.moe_peers import RaggedPeer
    from benchmarks.timing import elapsed_us, interleaved_us
    from benchmarks.unseen import NEAR, forced

    peers = [RaggedPeer(name, functools.partial(forced, variant=name)) for name in kernels]
    graphs = {peer.name: prepare(peer, workload)[0] for peer in peers}
    times = {name: elapsed_us(graph.run) / graph.launches for name, graph in graphs.items()}
    near = [name for name in graphs if times[name] < NEAR * min(times.values())]
    return times | dict(zip(near, interleaved_us([graphs[name] for name in near], repeats=3)))
