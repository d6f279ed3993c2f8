"""`python -m benchmarks.fp8_lists`: lists of e4m3 products with one scale each, by row and column, and by block.

Ours beside our own kernels that read by pointers, beside ragged rows where the list is one, and beside a loop of
torch's `_scaled_mm` under a graph. Rested and hot, each checked against float64.
"""

import argparse
import functools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import gg_runtime

from .arguments import parsed
from .fp8_calls import BLOCK, CHECKED_ROWS, E4M3, FAST_TOLERANCE, ONE, ROW, TOLERANCE, TORCH, TORCH_FAST, blocks
from .measured import checked, rested_and_hot, right
from .shapes import Shape
from .timing import Call, Graph, interleaved_us

POINTERS = "by pointers, "  # ours by the kernels that read matrices by pointers
RAGGED = "ragged rows, "


def unlike(count: int, seed: int) -> list[Shape]:
    numbers = random.Random(seed)

    def size(low: int, high: int) -> int:
        return 128 * numbers.randint(low, high)

    return [(size(4, 32), size(8, 56), size(8, 56)) for _ in range(count)]


LISTS: dict[str, list[Shape]] = {
    "8 x [4096, 4096, 7168]": [(4096, 4096, 7168)] * 8,
    "12 unlike, 512 to 4096 rows, N and K 1024 to 7168": unlike(12, 0),
    "64 x [256, 1536, 2048]": [(256, 1536, 2048)] * 64,
    "128 x [64, 1536, 2048]": [(64, 1536, 2048)] * 128,
    "8 x [16, 4096, 7168]": [(16, 4096, 7168)] * 8,
}


@dataclass(frozen=True)
class Peer:
    call: Call
    mode: str
    output: Callable[[], list[torch.Tensor]]  # what the last call wrote


class Workload:
    """A list with scales of each mode, between 1/2 and 3/2."""

    def __init__(self, shapes: list[Shape]):
        self.shapes = shapes
        self.A = [torch.randn(m, k, device="cuda").to(E4M3) for m, n, k in shapes]
        self.B = [torch.randn(n, k, device="cuda").to(E4M3).t() for m, n, k in shapes]
        self.C = [torch.empty(m, n, device="cuda", dtype=torch.bfloat16) for m, n, k in shapes]
        of = {
            ROW: lambda m, n, k: ((m,), (n,)),
            BLOCK: lambda m, n, k: ((m, blocks(k)), (blocks(n), blocks(k))),
        }
        self.scales = {
            mode: tuple([0.5 + torch.rand(of[mode](*shape)[i], device="cuda") for shape in shapes] for i in (0, 1))
            for mode in of
        } | {ONE: tuple(0.5 + torch.rand(len(shapes), device="cuda") for _ in range(2))}

    @property
    def flop(self) -> int:
        return sum(2 * m * n * k for m, n, k in self.shapes)

    def plan(self, mode: str, variant: str | None = None) -> gg_runtime.Plan:
        of_a, of_b = self.scales[mode]
        return gg_runtime.Plan(self.A, self.B, out=self.C, scale_a=of_a, scale_b=of_b, variant=variant)

    def by_pointers(self, mode: str) -> str:
        """The kernel that would be chosen if TMA read nothing."""
        of_a, of_b = self.scales[mode]
        seen = gg_runtime.explain(self.A, self.B, out=self.C, scale_a=of_a, scale_b=of_b)
        usable = (one["variant"] for one in seen.candidates if one["ruled_out"] is None)
        return next(variant for variant in usable if variant.startswith("basic"))

    def ragged(self, mode: str) -> Peer:
        """The same matrices as rows of one, of products that are alike in N and K."""
        x, w = torch.cat(self.A), torch.stack([b.t() for b in self.B]).mT
        out = torch.empty(len(x), w.shape[2], device="cuda", dtype=torch.bfloat16)
        offs = torch.tensor([len(a) for a in self.A], device="cuda").cumsum(0, dtype=torch.int32)
        of_a, of_b = self.scales[mode]
        given: dict[str, Any] = {"scale_a": torch.cat(tuple(of_a)), "scale_b": torch.stack(tuple(of_b))}
        plan = gg_runtime.Plan(x, w, offs=offs, out=out, **given)
        return Peer(plan.run, mode, lambda: list(out.split([len(a) for a in self.A])))

    def torch_loop(self, fast: bool) -> Peer:
        multiply = torch._scaled_mm  # pyright: ignore[reportPrivateImportUsage]  torch has no public name for it
        operands = [(a, b, s[:, None], t[None]) for a, b, s, t in zip(self.A, self.B, *self.scales[ROW])]
        made: list[torch.Tensor] = []

        def call() -> None:
            made[:] = [multiply(*one, out_dtype=torch.bfloat16, use_fast_accum=fast) for one in operands]

        return Peer(call, ROW, lambda: made)

    def error(self, peer: str, mode: str, products: list[torch.Tensor]) -> float:
        """The largest relative error of the rows that are looked at; ArithmeticError above the tolerance."""
        worst, allowed = 0.0, FAST_TOLERANCE if peer == TORCH_FAST else TOLERANCE
        of_a, of_b = self.scales[mode]
        for a, b, scale_a, scale_b, product in zip(self.A, self.B, of_a, of_b, products, strict=True):
            rows = sorted({round(i * (len(a) - 1) / (CHECKED_ROWS - 1)) for i in range(CHECKED_ROWS)})
            x, w = a[rows].double(), b.double()
            if mode == BLOCK:
                x = x * scale_a[rows].double().repeat_interleave(128, 1)[:, : x.shape[1]]
                of_w = scale_b.double().repeat_interleave(128, 0).repeat_interleave(128, 1)
                right = x @ (w * of_w[: w.shape[1], : w.shape[0]].t())
            else:
                right = (x @ w) * (scale_a[rows, None] if mode == ROW else scale_a).double() * scale_b.double()
            error = float((product[rows].double() - right).norm(dim=1).div(right.norm(dim=1)).max())
            worst = max(worst, error) if error == error else error
        if not worst <= allowed:
            raise ArithmeticError(f"relative error {worst:.1e} in a row, at most {allowed:.0e} is right")
        return worst

    def peers(self) -> dict[str, Callable[[], Peer]]:
        def ours(mode: str, pointers: bool = False) -> Peer:
            plan = self.plan(mode, self.by_pointers(mode) if pointers else None)
            return Peer(plan.run, mode, lambda: self.C)

        found: dict[str, Callable[[], Peer]] = {mode: functools.partial(ours, mode) for mode in (BLOCK, ROW, ONE)}
        found |= {POINTERS + mode: functools.partial(ours, mode, True) for mode in (BLOCK, ROW, ONE)}
        if len({shape[1:] for shape in self.shapes}) == 1:
            found |= {RAGGED + mode: functools.partial(self.ragged, mode) for mode in (BLOCK, ROW)}
        return found | {
            TORCH_FAST: functools.partial(self.torch_loop, fast=True),
            TORCH: functools.partial(self.torch_loop, fast=False),
        }


def measure(shapes: list[Shape]) -> dict[str, Any]:
    workload = Workload(shapes)

    def made(name: str, bind: Callable[[], Peer]) -> tuple[Graph, float]:
        peer = bind()
        return checked([peer.call], peer.output, lambda: workload.error(name, peer.mode, peer.output()))

    graphs, row = right({name: functools.partial(made, name, bind) for name, bind in workload.peers().items()})
    cool = {name: graphs.pop(name) for name in list(graphs) if name.startswith(POINTERS)}  # whoever follows them rests
    row |= rested_and_hot(graphs)
    row["us"] |= dict(zip(cool, interleaved_us(list(cool.values()), 1)))
    row["variant"] = {mode: workload.plan(mode).variant for mode in (BLOCK, ROW, ONE)}
    return row | {"flop": workload.flop}


def table(name: str, row: dict[str, Any]) -> str:
    """Microseconds rested and hot, TFLOP/s, the error, and the kernel that was chosen."""
    lines = [name]
    for peer, us in row["us"].items():
        hot = f"hot {row['hot_us'][peer]:9.1f} us" if peer in row["hot_us"] else ""
        lines.append(
            f"  {peer:26} {us:9.1f} us {hot:16} {row['flop'] / us / 1e6:6.0f} TFLOP/s  "
            f"error {row['error'][peer]:.1e} {row['variant'].get(peer, '')}"
        )
    return "\n".join([*lines, *(f"  {peer} FAILED: {why}" for peer, why in row["failed"].items())])


def main() -> None:
    parsed(argparse.ArgumentParser(prog="python -m benchmarks.fp8_lists", description=__doc__))
    print(f"{torch.cuda.get_device_name()}, gg_runtime {gg_runtime.__version__}, torch {torch.__version__}")
    for name, shapes in LISTS.items():
        print(table(name, measure(shapes)), flush=True)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
