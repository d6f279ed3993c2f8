"""Who multiplies e4m3 with scales, and how each is called on one product: the same random data for all."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch

import gg_runtime

from .moe_peers import allocating, in_place
from .moe_workload import Launch, RaggedCopy
from .peers import installed
from .shapes import RaggedShape

E4M3 = torch.float8_e4m3fn
ONE, ROW, BLOCK, BLOCK_BY_COLUMN = "one scale", "row", "block", "block, scale_a column-major"
TORCH, TORCH_FAST = "torch row", "torch row, fast sums"
CONTIGUOUS, MASKED = "DeepGEMM contiguous", "DeepGEMM masked"
MOST_MASKED_ROWS = 512  # a group on average; more than in 16 bits, as groups of some shapes are all alike
OURS = (BLOCK, BLOCK_BY_COLUMN, ROW, ONE)
BY_BLOCK = (BLOCK, BLOCK_BY_COLUMN, CONTIGUOUS, MASKED)
COLD_BYTES = 200_000_000  # of weights, so that decoding reads them from memory and not from L2
MOST_COPIES = 8
CHECKED_ROWS = 24
TOLERANCE, FAST_TOLERANCE = 4e-3, 3e-2  # of a row's norm; rounding to bfloat16 alone makes 1.7e-3


def blocks(size: int) -> int:
    return -(-size // 128)


@dataclass(frozen=True)
class Scales:
    """Of A and of B, by row and column, and by block; all of them between 1/2 and 3/2."""

    row: tuple[torch.Tensor, torch.Tensor]
    block: tuple[torch.Tensor, torch.Tensor]
    one: tuple[torch.Tensor, torch.Tensor]

    @staticmethod
    def of(shape: RaggedShape) -> "Scales":
        def uniform(*sizes: int) -> torch.Tensor:
            return 0.5 + torch.rand(sizes, device="cuda")

        n, k = blocks(shape.columns), blocks(shape.depth)
        return Scales(
            row=(uniform(shape.rows), uniform(shape.experts, shape.columns)),
            block=(uniform(shape.rows, k), uniform(shape.experts, n, k)),
            one=(uniform(1), uniform(shape.experts)),
        )


class Product:
    """One shape: A, scales, and weights in as many copies as it takes that they come from memory."""

    def __init__(self, shape: RaggedShape):
        self.shape = shape
        self.ends = list(accumulate(shape.group_rows))
        x = torch.randn(shape.rows, shape.depth, device="cuda").to(E4M3)
        w = torch.empty(shape.experts, shape.columns, shape.depth, device="cuda", dtype=E4M3)
        for expert in w:
            expert.copy_(torch.randn(expert.shape, device="cuda"))
        used = sum(map(bool, shape.group_rows))
        count = max(1, min(MOST_COPIES, -(-COLD_BYTES // (used * shape.columns * shape.depth))))
        out = torch.empty(shape.rows, shape.columns, device="cuda", dtype=torch.bfloat16)
        offs = torch.tensor(self.ends, device="cuda", dtype=torch.int32)
        weights = [w, *(w.clone() for _ in range(count - 1))]
        self.copies = [RaggedCopy(x, one, out, offs, shape) for one in weights]
        self.scales = Scales.of(shape)

    def expected(self, peer: str, row: int) -> torch.Tensor:
        """A row of the product in float64."""
        copy = self.copies[0]
        group = next(group for group, end in enumerate(self.ends) if row < end)
        a, b = copy.A[row].double(), copy.W[group].double()
        if peer in BY_BLOCK:
            of_a, of_b = (one.double() for one in self.scales.block)
            b = b * of_b[group].repeat_interleave(128, 0)[: len(b)].repeat_interleave(128, 1)[:, : len(a)]
            return b @ (a * of_a[row].repeat_interleave(128)[: len(a)])
        of_a, of_b = (one.double() for one in (self.scales.one if peer == ONE else self.scales.row))
        return (b @ a) * (of_a if peer == ONE else of_a[row]) * of_b[group]

    def error(self, peer: str, product: torch.Tensor) -> float:
        """The largest relative error of the rows that are looked at; ArithmeticError above the tolerance."""
        worst = 0.0
        for row in sorted({round(i * (self.shape.rows - 1) / (CHECKED_ROWS - 1)) for i in range(CHECKED_ROWS)}):
            right = self.expected(peer, row)
            error = float(torch.linalg.vector_norm(product[row].double() - right) / torch.linalg.vector_norm(right))
            worst = max(worst, error) if error == error else error
        allowed = FAST_TOLERANCE if peer == TORCH_FAST else TOLERANCE
        if not worst <= allowed:
            raise ArithmeticError(f"relative error {worst:.1e} in a row, at most {allowed:.0e} is right")
        return worst


def ours(product: Product, peer: str, copy: RaggedCopy, variant: str | None = None) -> Launch:
    a, b = {ONE: product.scales.one, ROW: product.scales.row}.get(peer, product.scales.block)
    if peer == BLOCK_BY_COLUMN:
        a = a.mT.contiguous().mT
    given: dict[str, Any] = {"offs": copy.offs, "out": copy.C, "scale_a": a, "scale_b": b}
    return in_place(gg_runtime.Plan(copy.A, copy.B, variant=variant, **given).run, copy)


def torch_by_row(product: Product, copy: RaggedCopy, fast: bool) -> Launch:
    options = {"offs": copy.offs, "out_dtype": torch.bfloat16, "use_fast_accum": fast}
    multiply = torch._scaled_grouped_mm  # pyright: ignore[reportPrivateImportUsage]  torch has no public name for it
    return allocating(functools.partial(multiply, copy.A, copy.B, *product.scales.row, **options))


def deep_gemm(product: Product, copy: RaggedCopy, masked: bool) -> Launch:
    from . import deepgemm

    return (deepgemm.masked if masked else deepgemm.contiguous)(copy, product.scales.block)


def peers(product: Product, quick: bool) -> dict[str, Callable[[RaggedCopy], Launch]]:
    """How each is bound to a copy; ours first."""
    found: dict[str, Callable[[RaggedCopy], Launch]] = {
        peer: functools.partial(ours, product, peer) for peer in (OURS[:3] if quick else OURS)
    }
    if installed("deep_gemm"):
        found[CONTIGUOUS] = functools.partial(deep_gemm, product, masked=False)
        if product.shape.rows <= MOST_MASKED_ROWS * product.shape.experts:
            found[MASKED] = functools.partial(deep_gemm, product, masked=True)
    found[TORCH_FAST] = functools.partial(torch_by_row, product, fast=True)
    if not quick:
        found[TORCH] = functools.partial(torch_by_row, product, fast=False)
    return found


def bound(product: Product, bind: Callable[[RaggedCopy], Launch]) -> Sequence[Launch]:
    return [bind(copy) for copy in product.copies]
