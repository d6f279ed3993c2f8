"""The family of lists: fp16 products of unlike sizes, B in both layouts."""

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable

import torch

import gg_runtime

from ..spec.kernels import KERNELS
from ..spec.variants import Variant
from .family import Family, Times
from .measurement import ListProduct, Shapes
from .timing import DEVICE, MOST_LAUNCHES, Replay, copies_for, race

LAYOUTS = ("nn", "nt")
LARGEST_FLOP = 2.3e12  # of a list, a few milliseconds
L2_PASSES = 2  # bytes of all copies of a list, in sizes of L2
TOLERANCE = 1e-3  # of the Frobenius norm; rounding to float16 alone makes 2.8e-4


def drawn(groups: int, largest: int, seed: int) -> Shapes:
    """Sizes drawn from the multiples of 64 up to `largest`."""
    numbers = random.Random(seed)

    def size() -> int:
        return 64 * numbers.randint(1, largest // 64)

    return tuple((size(), size(), size()) for _ in range(groups))


def lists() -> list[Shapes]:
    """The benchmark's lists, then others, mixed."""
    first = [((n, n, n),) * 4 for n in (128, 256, 512, 1024)] + [tuple((n, n, n) for n in (1024, 512, 256, 128))]
    first += [((m, 8192, 8192),) * 4 for m in (128, 256, 512, 1024, 2048)]
    first += [drawn(64, 2048, seed=0), drawn(256, 512, seed=1)]
    sizes = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
    others = [((n, n, n),) * groups for groups in (1, 4, 16, 64) for n in sizes]
    others += [((m, 1024, 1024),) * groups for groups in (4, 16, 64) for m in (16, 64)]
    others += [((m, 4096, 2048),) * groups for groups in (4, 16, 64) for m in (16, 64)]
    others += [((256, 256, 8192),) * groups for groups in (1, 16)] + [((4096, 4096, 64),) * 4]
    others += [drawn(groups, largest, groups) for groups, largest in ((8, 4096), (16, 1024), (32, 512))]
    others = [shapes for shapes in others if shapes not in first and ListProduct("nn", shapes).flop <= LARGEST_FLOP]
    return first + random.Random(0).sample(others, len(others))


def norm(matrices: Iterable[torch.Tensor]) -> torch.Tensor:
    """The Frobenius norm of all of them."""
    squared: torch.Tensor = sum(
        (c.double().square().sum() for c in matrices), torch.zeros((), device=DEVICE, dtype=torch.float64)
    )
    return squared.sqrt()


class Workload:
    """A list's tensors, in as many copies as it takes that a pass over them leaves nothing in L2."""

    def __init__(self, product: ListProduct):
        self.shapes = product.shapes

        def normal(rows: int, columns: int) -> torch.Tensor:
            return torch.randn(rows, columns, device=DEVICE, dtype=torch.float16)

        A = [normal(m, k) for m, _, k in product.shapes]
        B = [normal(k, n) if product.layout == "nn" else normal(n, k).t() for _, n, k in product.shapes]
        self.products = [a.float() @ b.float() for a, b in zip(A, B)]
        self.norm = norm(self.products)
        self.copies = []
        for _ in range(copies_for(product.bytes, L2_PASSES, MOST_LAUNCHES)):
            C = [torch.empty(m, n, device=DEVICE, dtype=torch.float16) for m, n, _ in product.shapes]
            self.copies.append(([a.clone() for a in A], [torch.empty_like(b).copy_(b) for b in B], C))

    def error(self, plan: gg_runtime.Plan[list[torch.Tensor]]) -> float:
        """Relative, of what a plan writes over NaN."""
        for c in plan.out:
            c.fill_(float("nan"))
        plan.run()
        return float(norm(c.float() - right for c, right in zip(plan.out, self.products)) / self.norm)


class Lists(Family[ListProduct]):
    name = "lists"

    def __init__(self):
        self.stream = None

    def units(self) -> list[list[ListProduct]]:
        return [[ListProduct(layout, shapes)] for shapes, layout in itertools.product(lists(), LAYOUTS)]

    def candidates(self, embedded: list[Variant], product: ListProduct) -> list[Variant]:
        wanted = ("fp16", product.layout)
        return [v for v in embedded if (v.dtype, v.layout) == wanted and KERNELS[v.kernel].form == "list"]

    def measure(
        self, unit: list[ListProduct], kernels: list[str], say: Callable[[str], None]
    ) -> dict[ListProduct, Times]:
        (product,) = unit
        workload = Workload(product)
        replays, slots = self._graphs(workload, kernels, say)
        times = race(replays, product.flop) if replays else {}
        del workload, replays
        torch.cuda.empty_cache()
        return {product: {name: (slots[name], us) for name, us in times.items()}}

    def _graphs(
        self, workload: Workload, kernels: list[str], say: Callable[[str], None]
    ) -> tuple[dict[str, Replay], dict[str, int]]:
        """Of the kernels that are right, and their slots."""
        self.stream = self.stream or torch.cuda.Stream()
        replays, slots = {}, {}
        for name in kernels:
            plans = [gg_runtime.Plan(A, B, out=C, variant=name) for A, B, C in workload.copies]
            if not (error := workload.error(plans[0])) <= TOLERANCE:  # NaN is wrong too
                say(f"{name} is wrong on {Counter(workload.shapes).most_common(2)}: relative error {error:.1e}")
                continue
            replays[name], slots[name] = Replay([plan.run for plan in plans], self.stream), plans[0].slots
        return replays, slots
