"""Measures the embedded kernels on this machine's GPU. Needs torch and gg_runtime, never Triton."""

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass

from ..spec.variants import KERNELS, Config, Variant, variants

LAYOUTS = ("nn", "nt")
LARGEST_FLOP = 2.3e12  # of a list, a few milliseconds
HOPELESS = 4  # times slower than the best so far: one eager run is enough
GRAPH_US = 1500.0  # what a timed graph should take, at the least

Shapes = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class Measurement:
    """Microseconds of a list on a kernel, and how many CTAs of it the GPU held at once."""

    layout: str
    shapes: Shapes
    kernel: str
    alignment: int
    config: Config
    slots: int
    us: float

    @property
    def groups(self) -> list[list[int]]:
        """[[M, N, K, count], ...], sorted."""
        return [[*shape, count] for shape, count in sorted(Counter(self.shapes).items())]

    def to_json(self) -> dict:
        return asdict(self) | {"shapes": self.groups}

    @classmethod
    def from_json(cls, row: dict) -> "Measurement":
        shapes = tuple((m, n, k) for m, n, k, count in row["shapes"] for _ in range(count))
        return cls(**row | {"shapes": shapes, "config": Config(**row["config"])})


def lists() -> Iterator[Shapes]:
    """What is measured, in this order until the time is up: the benchmark's lists, then the others, mixed."""
    from benchmarks.shapes import LISTS, ragged

    first = [tuple(shapes) for shapes in LISTS.values()]
    sizes = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
    others = [((n, n, n),) * groups for groups in (1, 4, 16, 64) for n in sizes]
    others += [((m, 1024, 1024),) * groups for groups in (4, 16, 64) for m in (16, 64)]
    others += [((m, 4096, 2048),) * groups for groups in (4, 16, 64) for m in (16, 64)]
    others += [((256, 256, 8192),) * groups for groups in (1, 16)] + [((4096, 4096, 64),) * 4]
    others += [tuple(ragged(groups, largest, groups)) for groups, largest in ((8, 4096), (16, 1024), (32, 512))]
    others = [shapes for shapes in others if shapes not in first and flop(shapes) <= LARGEST_FLOP]
    yield from first + random.Random(0).sample(others, len(others))


def flop(shapes: Shapes) -> int:
    return sum(2 * m * n * k for m, n, k in shapes)


def embedded(sm: int) -> list[Variant]:
    """The kernels that the installed wheel holds, as aot/tables describes them."""
    import gg_runtime

    names = {kernel["name"] for kernel in gg_runtime.kernels()}
    return [variant for variant in variants([sm]) if variant.name in names]


def candidates(sm: int, layout: str) -> list[Variant]:
    """The fp16 kernels of the layout."""
    wanted = ("fp16", layout)
    return [v for v in embedded(sm) if (v.dtype, v.layout) == wanted and KERNELS[v.kernel].form == "list"]


def sweep(sm: int, seconds: float, work: Iterable[Shapes], say: Callable[[str], None]) -> list[Measurement]:
    """Every candidate on every list, until the time is up."""
    import torch

    deadline = time.monotonic() + seconds
    found: list[Measurement] = []
    for shapes in work:
        for layout in LAYOUTS:
            if time.monotonic() > deadline:
                say(f"the time is up after {len(found)} measurements")
                return found
            found += measure_all(candidates(sm, layout), layout, shapes, say)
            torch.cuda.empty_cache()
    return found


def measure_all(kernels: list[Variant], layout: str, shapes: Shapes, say: Callable[[str], None]) -> list[Measurement]:
    """The kernels that give right products; of the others, `say` tells."""
    from benchmarks.workload import Workload

    workload = Workload(list(shapes), layouts=(layout,))
    found: list[Measurement] = []
    for kernel in kernels:
        best = min((measurement.us for measurement in found), default=float("inf"))
        try:
            slots, us = measure(kernel, workload, layout, best)
        except ArithmeticError as error:
            say(f"{kernel.name} is wrong on {Counter(shapes).most_common(2)}: {error}")
            continue
        found.append(Measurement(layout, shapes, kernel.kernel, kernel.alignment, kernel.config, slots, us))
    return found


def measure(kernel: Variant, workload, layout: str, best: float) -> tuple[int, float]:
    """CTA slots and microseconds; ArithmeticError if the kernel's first outputs are wrong."""
    import gg_runtime
    from benchmarks.timing import Graph, elapsed_us

    plans = [gg_runtime.Plan(c.A, c.B[layout], out=c.C, variant=kernel.name) for c in workload.copies]
    first = slice(0, 1)
    workload.poison(first)
    plans[0].run()
    workload.check(first)
    us = elapsed_us(plans[0].run)
    if us < HOPELESS * best or us < 100:  # an eager run of less says more of the launch than of the kernel
        us = Graph([plan.run for plan in plans], least=max(2, min(20, int(GRAPH_US / us)))).us(repeats=3)
    return plans[0].slots, us
