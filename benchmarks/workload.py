"""Tensors of one list, in as many copies as it takes that a pass over them leaves nothing in L2."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from .shapes import Shape

L2_PASSES = 2  # bytes of all copies of a list, in sizes of L2
MOST_COPIES = 384
TOLERANCE = 1e-3  # of the Frobenius norm; rounding to float16 alone makes 2.8e-4


@dataclass(frozen=True)
class Copy:
    """One list of products. B has N contiguous in `nn` and K contiguous in `nt`, with the same values."""

    A: list[torch.Tensor]
    B: dict[str, list[torch.Tensor]]
    C: list[torch.Tensor]


def copies_for(bytes_moved: int, l2_passes: int = L2_PASSES) -> int:
    l2 = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
    return max(1, min(MOST_COPIES, -(-l2_passes * l2 // bytes_moved)))


def norm(matrices: Iterable[torch.Tensor]) -> torch.Tensor:
    """The Frobenius norm of all of them."""
    squared: torch.Tensor = sum(
        (c.double().square().sum() for c in matrices), torch.zeros((), device="cuda", dtype=torch.float64)
    )
    return squared.sqrt()


class Workload:
    """A list, its copies, and the float32 products that every copy must give."""

    def __init__(self, shapes: list[Shape], dtype=torch.float16, layouts=("nn", "nt"), seed: int = 0):
        self.shapes = shapes
        self.flop = sum(2 * m * n * k for m, n, k in shapes)
        self.bytes = sum(2 * (m * k + k * n + m * n) for m, n, k in shapes)
        generator = torch.Generator(device="cuda").manual_seed(seed)

        def normal(rows, columns):
            return torch.randn(rows, columns, device="cuda", dtype=dtype, generator=generator)

        A, B = [normal(m, k) for m, _, k in shapes], [normal(k, n) for _, n, k in shapes]
        self.products = [a.float() @ b.float() for a, b in zip(A, B)]
        self.norm = norm(self.products)
        place = {"nn": lambda b: b.clone(), "nt": lambda b: b.t().contiguous().t()}
        self.copies = [
            Copy(
                [a.clone() for a in A],
                {layout: [place[layout](b) for b in B] for layout in layouts},
                [torch.empty(m, n, device="cuda", dtype=dtype) for m, n, _ in shapes],
            )
            for _ in range(copies_for(self.bytes))
        ]

    def poison(self, copies: slice = slice(None)) -> None:
        for copy in self.copies[copies]:
            for c in copy.C:
                c.fill_(float("nan"))

    def check(self, copies: slice = slice(None)) -> float:
        """The largest relative Frobenius error of a copy; ArithmeticError above TOLERANCE or where none was written."""
        worst = torch.zeros((), device="cuda", dtype=torch.float64)
        for copy in self.copies[copies]:
            wrong = norm(c.float() - p for c, p in zip(copy.C, self.products))
            worst = torch.maximum(worst, wrong / self.norm)
        error = float(worst)  # torch.maximum keeps NaN
        if not error <= TOLERANCE:
            raise ArithmeticError(f"relative error {error:.1e}, at most {TOLERANCE:.0e} is right")
        return error
