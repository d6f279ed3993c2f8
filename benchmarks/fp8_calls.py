"""Who multiplies e4m3 with scales, and how each is called on one product: the same random data for all."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch

import gg_runtime

from .moe_peers import allocating, in_place
from .moe_workload import Launch, RaggedCopy
from .peers import installed
from .shapes import RaggedShape
from .workload import copies_for

E4M3 = torch.float8_e4m3fn
ONE, ROW, BLOCK, BLOCK_BY_COLUMN = "one scale", "row", "block", "block, scale_a column-major"
TORCH, TORCH_FAST = "torch row", "torch row, fast sums"
LOOP, LOOP_FAST = "torch loop, row", "torch loop, row, fast sums"  # a product after the other
CONTIGUOUS, MASKED = "DeepGEMM contiguous", "DeepGEMM masked"
MOST_MASKED_ROWS = 512  # a group on average; more than in 16 bits, as groups of some shapes are all alike
MOST_PADDING = 1.1  # that nobody minds where groups are larger: of rows with padding to rows
OURS = (BLOCK, BLOCK_BY_COLUMN, ROW, ONE)
BY_BLOCK = (BLOCK, BLOCK_BY_COLUMN, CONTIGUOUS, MASKED)
L2_PASSES = 8  # of a product's bytes in all copies, so that they come from memory
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
    """One shape: scales, and A, weights and outputs in as many copies as it takes that they come from memory."""

    def __init__(self, shape: RaggedShape):
        self.shape = shape
        self.ends = list(accumulate(shape.group_rows))
        x = torch.randn(shape.rows, shape.depth, device="cuda").to(E4M3)
        w = torch.empty(shape.experts, shape.columns, shape.depth, device="cuda", dtype=E4M3)
        for expert in w:
            expert.copy_(torch.randn(expert.shape, device="cuda"))
        offs = torch.tensor(self.ends, device="cuda", dtype=torch.int32)
        self.copies = []
        for number in range(copies_for(shape.bytes, L2_PASSES)):
            out = torch.empty(shape.rows, shape.columns, device="cuda", dtype=torch.bfloat16)
            a, b = (one.clone() if number else one for one in (x, w))
            self.copies.append(RaggedCopy(a, b, out, offs, shape))
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
        allowed = FAST_TOLERANCE if peer in (TORCH_FAST, LOOP_FAST) else TOLERANCE
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


def torch_loop(product: Product, copy: RaggedCopy, fast: bool) -> Launch:
    of_a, of_b = product.scales.row
    parts = zip(*(whole.split(product.shape.group_rows) for whole in (copy.A, of_a, copy.C)), copy.B, of_b)
    operands = [((a, b, s[:, None], t[None]), c) for a, s, c, b, t in parts if len(a)]
    multiply = torch._scaled_mm  # pyright: ignore[reportPrivateImportUsage]  torch has no public name for it

    def call() -> None:
        for given, out in operands:
            multiply(*given, out_dtype=torch.bfloat16, use_fast_accum=fast, out=out)

    return in_place(call, copy)


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
        shape = product.shape
        alike = max(shape.group_rows) * shape.experts <= MOST_PADDING * shape.rows
        if alike or shape.rows <= MOST_MASKED_ROWS * shape.experts:
            found[MASKED] = functools.partial(deep_gemm, product, masked=True)
    found[TORCH_FAST] = functools.partial(torch_by_row, product, fast=True)
    found[LOOP_FAST] = functools.partial(torch_loop, product, fast=True)
    if not quick:
        found[TORCH] = functools.partial(torch_by_row, product, fast=False)
        found[LOOP] = functools.partial(torch_loop, product, fast=False)
    return found
