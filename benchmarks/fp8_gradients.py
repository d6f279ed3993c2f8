"""`python -m benchmarks.fp8_gradients [SHAPE ...]`: weight gradients of e4m3 with scales of blocks along K, beside
DeepGEMM's k_grouped_fp8_gemm_nt_contiguous where it is installed, on the same random data.

All add float32 sums to the output, as gradients of micro-batches are gathered, unless the line says that it writes.
TFLOP/s rested and hot; then each config. SHAPE: a part of the names of the shapes to run.
"""

import importlib.util
import sys
from itertools import accumulate
from typing import Any

import torch

import gg_runtime

from .timing import Graph, enough, interleaved_hot_us, interleaved_us

E4M3 = torch.float8_e4m3fn
# Groups, M, N, and K of each group: tokens of an expert, padded to 128.
BY_ROW = "adds, scales by row"
ADDING = ("DeepGEMM", "adds", BY_ROW)  # what does as much work as DeepGEMM
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

    def check(self, out: torch.Tensor, adds: bool, what: str) -> None:
        """A few rows of the last group, in float64; 1 was there before where the sums are added."""
        k, rows = slice(self.ends[-1] - self.each, self.ends[-1]), [0, self.m // 2, self.m - 1]
        blocks = slice(k.start // 128, k.stop // 128)
        of_a = self.scale_a[blocks, rows].double().repeat_interleave(128, 0).T
        of_b = self.scale_b[blocks].double().repeat_interleave(128, 0)
        right = (self.a[rows, k].double() * of_a) @ (self.b[:, k].double().T * of_b) + adds
        error = float(torch.linalg.vector_norm(out[-1, rows].double() - right) / torch.linalg.vector_norm(right))
        if not error <= TOLERANCE * (1 if out.dtype is torch.float32 else 4):
            raise ArithmeticError(f"{what}: relative error {error:.1e}")

    def output(self, dtype: torch.dtype, adds: bool) -> torch.Tensor:
        return torch.full((self.groups, self.m, self.n), 1.0 if adds else float("nan"), device="cuda", dtype=dtype)

    def ours(self, adds=True, dtype=torch.float32, by_row=False, variant: str | None = None) -> tuple[Graph, str]:
        """`by_row`: the scales of a row of A, and of a column of B, lie one behind the other."""
        out = self.output(dtype, adds)
        of_a, of_b = self.scale_a.T, self.scale_b
        if by_row:
            of_a, of_b = of_a.contiguous(), of_b.T.contiguous().T
        given: dict[str, Any] = {"offs": self.offs, "out": out, "scale_a": of_a, "scale_b": of_b, "variant": variant}
        plan = gg_runtime.Plan(self.a, self.b.T, beta=1.0 if adds else 0.0, k_alignment=128, **given)
        plan.run()
        self.check(out, adds, plan.variant)
        return Graph([plan.run], least=enough(plan.run)), plan.variant

    def deep_gemm(self) -> tuple[Graph, str]:
        """It takes each group's [M, K of the group] as an array of its own, one behind the other."""
        import deep_gemm

        ks = [self.each] * self.groups
        spans = [slice(end - self.each, end) for end in self.ends]
        a, b = (torch.cat([whole[:, k].flatten() for k in spans]) for whole in (self.a, self.b))
        out = self.output(torch.float32, True)
        sizes = torch.tensor(ks, device="cuda", dtype=torch.int32)

        def call() -> None:
            deep_gemm.k_grouped_fp8_gemm_nt_contiguous((a, self.scale_a.T), (b, self.scale_b.T), out, ks, sizes, out)

        call()
        self.check(out, True, "DeepGEMM")
        return Graph([call], least=enough(call)), "k_grouped_fp8_gemm_nt_contiguous"


def config(variant: str) -> str:
    return variant.rpartition("_a16_")[2]


def figure(gradient: Gradient, us: float) -> str:
    return f"{us:9.1f} us {gradient.flop / us / 1e6:6.0f} TFLOP/s"


def run(name: str, gradient: Gradient) -> None:
    sizes = f"M={gradient.m}, N={gradient.n}, K={gradient.each} each"
    print(f"\n{name}: {gradient.groups} groups, {sizes}", flush=True)
    found = {"DeepGEMM": gradient.deep_gemm()} if importlib.util.find_spec("deep_gemm") else {}
    found["adds"] = gradient.ours()
    found[BY_ROW] = gradient.ours(by_row=True)
    found["writes"] = gradient.ours(adds=False)
    found["writes bfloat16"] = gradient.ours(adds=False, dtype=torch.bfloat16)
    graphs = [graph for graph, _ in found.values()]
    rested, hot = (dict(zip(found, times(graphs))) for times in (interleaved_us, interleaved_hot_us))
    peer = "DeepGEMM" if "DeepGEMM" in found else "adds"
    for line, (_, variant) in found.items():
        ratios = [f"x{times[peer] / times[line]:5.3f}" if line in ADDING else "" for times in (rested, hot)]
        print(f"  {line:20} {figure(gradient, rested[line])}  {ratios[0]:6}  hot{figure(gradient, hot[line])}  "
              f"{ratios[1]:6}  {config(variant)}", flush=True)  # fmt: skip
    times = []
    for kernel in gg_runtime.kernels():
        if (kernel["kernel"], kernel["dtype"], kernel["out_dtype"]) == ("hopper_ragged_k_block_scales", "e4m3", "fp32"):
            graph, variant = gradient.ours(variant=kernel["name"])
            times.append(f"{config(variant)} {graph.us():.1f}")
    print(f"  adds, by config: {', '.join(times)}", flush=True)


def main(wanted: list[str]) -> None:
    print(torch.cuda.get_device_name())
    for name, shape in SHAPES.items():
        if not wanted or any(part in name for part in wanted):
            run(name, Gradient(*shape))


if __name__ == "__main__":
    main(sys.argv[1:])
