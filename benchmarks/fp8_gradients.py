"""`python -m benchmarks.fp8_gradients [SHAPE ...]`: weight gradients of e4m3 with scales of blocks along K, beside
DeepGEMM's k_grouped_fp8_gemm_nt_contiguous where it is installed, on the same random data.

All add float32 sums to the output, as gradients of micro-batches are gathered, unless the line says that it writes.
TFLOP/s rested and hot; then each config. SHAPE: a part of the names of the shapes to run.
"""

import argparse
import functools
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import torch

import gg_runtime

from .arguments import parsed
from .measured import error_of, measured, right
from .peers import installed
from .timing import Call, Graph, enough, interleaved_us

E4M3 = torch.float8_e4m3fn
# Groups, M, N, and K of each group: tokens of an expert, padded to 128.
DEEP_GEMM, ADDS, BY_ROW = "DeepGEMM", "adds", "adds, scales by row"
WRITES, WRITES_BF16 = "writes", "writes bfloat16"
ADDING = (DEEP_GEMM, ADDS, BY_ROW)  # what does as much work as DeepGEMM
SHAPES = {
    "DeepSeek-V3 gate-up 4 x 8192": (4, 4096, 7168, 8192),
    "DeepSeek-V3 down 4 x 8192": (4, 7168, 2048, 8192),
    "DeepSeek-V3 gate-up 8 x 4096": (8, 4096, 7168, 4096),
    "DeepSeek-V3 down 8 x 4096": (8, 7168, 2048, 4096),
    "Qwen3-235B gate-up 16 x 2048": (16, 3072, 4096, 2048),
    "Qwen3-30B gate-up 128 x 256": (128, 1536, 2048, 256),
    "Qwen3-30B down 128 x 256": (128, 2048, 768, 256),
    "few outputs 4 x 16384": (4, 512, 512, 16384),
}
TOLERANCE = 2e-3  # of the norm of the output, of the rows that are looked at


class Gradient:
    """mat_a [M, K] and mat_b [K, N] with K contiguous in both, and their scales with rows and columns contiguous."""

    def __init__(self, groups: int, m: int, n: int, each: int):
        self.groups, self.m, self.n, self.each = groups, m, n, each
        total = groups * each
        self.a, self.b = (torch.randn(width, total, device="cuda").to(E4M3) for width in (m, n))
        self.scale_a, self.scale_b = (0.5 + torch.rand(total // 128, width, device="cuda") for width in (m, n))
        self.ends = list(accumulate([each] * groups))
        self.offs = torch.tensor(self.ends, device="cuda", dtype=torch.int32)
        self.flop = 2 * total * m * n

    def error(self, out: torch.Tensor, times: int) -> float:
        """Of a few rows of the last group, in float64. `times`: how often the product was added to 1; 0 if written."""
        k, rows = slice(self.ends[-1] - self.each, self.ends[-1]), [0, self.m // 2, self.m - 1]
        blocks = slice(k.start // 128, k.stop // 128)
        of_a = self.scale_a[blocks, rows].double().repeat_interleave(128, 0).T
        of_b = self.scale_b[blocks].double().repeat_interleave(128, 0)
        product = (self.a[rows, k].double() * of_a) @ (self.b[:, k].double().T * of_b)
        right = 1 + times * product if times else product
        error = float(torch.linalg.vector_norm(out[-1, rows].double() - right) / torch.linalg.vector_norm(right))
        allowed = TOLERANCE * (1 if out.dtype is torch.float32 else 4)
        if not error <= allowed:
            raise ArithmeticError(f"relative error {error:.1e}, at most {allowed:.0e} is right")
        return error

    def output(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.zeros(self.groups, self.m, self.n, device="cuda", dtype=dtype)

    def checked(self, call: Call, out: torch.Tensor, adds: bool) -> tuple[Graph, float]:
        """As `checked` of measured.py; each launch of the graph adds to what was there."""
        graph = Graph([call], least=enough(call))
        if not adds:
            return graph, error_of(graph, lambda: [out], lambda: self.error(out, 0))
        out.fill_(1)
        graph.run()
        return graph, self.error(out, graph.launches)

    def plan(self, out: torch.Tensor, adds=True, by_row=False, variant: str | None = None) -> gg_runtime.Plan:
        """`by_row`: the scales of a row of A, and of a column of B, lie one behind the other."""
        of_a, of_b = self.scale_a.T, self.scale_b
        if by_row:
            of_a, of_b = of_a.contiguous(), of_b.T.contiguous().T
        given: dict[str, Any] = {"offs": self.offs, "out": out, "scale_a": of_a, "scale_b": of_b, "variant": variant}
        return gg_runtime.Plan(self.a, self.b.T, beta=1.0 if adds else 0.0, k_alignment=128, **given)

    def ours(self, adds=True, dtype=torch.float32, by_row=False, variant: str | None = None) -> tuple[Graph, float]:
        out = self.output(dtype)
        return self.checked(self.plan(out, adds, by_row, variant).run, out, adds)

    def deep_gemm(self) -> tuple[Graph, float]:
        """It takes each group's [M, K of the group] as an array of its own, one behind the other."""
        import deep_gemm

        ks = [self.each] * self.groups
        spans = [slice(end - self.each, end) for end in self.ends]
        a, b = (torch.cat([whole[:, k].flatten() for k in spans]) for whole in (self.a, self.b))
        out = self.output()
        sizes = torch.tensor(ks, device="cuda", dtype=torch.int32)

        def call() -> None:
            deep_gemm.k_grouped_fp8_gemm_nt_contiguous((a, self.scale_a.T), (b, self.scale_b.T), out, ks, sizes, out)

        return self.checked(call, out, True)


def config(variant: str) -> str:
    return variant.rpartition("_a16_")[2]


def figure(gradient: Gradient, us: float) -> str:
    return f"{us:9.1f} us {gradient.flop / us / 1e6:6.0f} TFLOP/s"


def run(name: str, gradient: Gradient) -> None:
    sizes = f"M={gradient.m}, N={gradient.n}, K={gradient.each} each"
    print(f"\n{name}: {gradient.groups} groups, {sizes}", flush=True)
    makers: dict[str, Callable[[], tuple[Graph, float]]] = {
        ADDS: gradient.ours,
        BY_ROW: functools.partial(gradient.ours, by_row=True),
        WRITES: functools.partial(gradient.ours, adds=False),
        WRITES_BF16: functools.partial(gradient.ours, adds=False, dtype=torch.bfloat16),
    }
    if installed("deep_gemm"):
        makers = {DEEP_GEMM: gradient.deep_gemm} | makers
    print("\n".join(told(gradient, measured(makers))), flush=True)
    graphs, of_configs = right({config(name): functools.partial(gradient.ours, variant=name) for name in variants()})
    times = (f"{name} {us:.1f}" for name, us in zip(graphs, interleaved_us(list(graphs.values()))))
    print("\n".join([f"  adds, by config: {', '.join(times)}", *failures(of_configs)]), flush=True)


def variants() -> list[str]:
    """Of kernels that can add float32 sums."""
    kind = ("hopper_ragged_k_block_scales", "e4m3", "fp32")
    return [
        kernel["name"]
        for kernel in gg_runtime.kernels()
        if (kernel["kernel"], kernel["dtype"], kernel["out_dtype"]) == kind
    ]


def told(gradient: Gradient, row: dict[str, Any]) -> list[str]:
    lines, chosen = [], config(gradient.plan(gradient.output()).variant)
    for line, us in row["us"].items():
        hot = row["hot_us"]
        peer = DEEP_GEMM if DEEP_GEMM in hot else ADDS
        compared = line in ADDING and peer in hot
        ratios = [f"x{times[peer] / times[line]:5.3f}" if compared else "" for times in (row["us"], hot)]
        lines.append(f"  {line:20} {figure(gradient, us)}  {ratios[0]:6}  hot{figure(gradient, hot[line])}  "
                     f"{ratios[1]:6}  error {row['error'][line]:.1e}")  # fmt: skip
    return [*lines, *failures(row), f"  chosen to add: {chosen}"]


def failures(row: dict[str, Any]) -> list[str]:
    return [f"  {what} FAILED: {why}" for what, why in row["failed"].items()]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fp8_gradients", description=__doc__)
    parser.add_argument(
        "wanted", nargs="*", metavar="SHAPE", help=f"parts of names, of {', '.join(SHAPES)}; all by default"
    )
    wanted = parsed(parser).wanted
    print(torch.cuda.get_device_name())
    for name, shape in SHAPES.items():
        if not wanted or any(part in name for part in wanted):
            run(name, Gradient(*shape))


if __name__ == "__main__":
    main()
