"""`python -m benchmarks.fp8_scales`: e4m3 products with scales by row and by block beside those with one scale.

TFLOP/s or, in decoding, the share of a copy's rate; and each config of the scaled kernels. Then quantize_1x128 beside a
copy.
"""

from itertools import accumulate
from typing import Any

import torch

import gg_runtime

from .shapes import split
from .timing import Graph, enough, hot_us, interleaved_us

E4M3 = torch.float8_e4m3fn
ONE, ROW, BLOCK, BLOCK_BY_COLUMN = "one scale", "row", "block", "block, scale_a column-major"
# Rows of each group, N, K.
PREFILL = {
    "DeepSeek-V3 gate-up 8 x 4096": ((4096,) * 8, 4096, 7168),
    "DeepSeek-V3 down 8 x 4096": ((4096,) * 8, 7168, 2048),
    "DeepSeek-V3 gate-up 4 x 8192": ((8192,) * 4, 4096, 7168),
    "DeepSeek-V3 down 4 x 8192": ((8192,) * 4, 7168, 2048),
    "Qwen3-30B gate-up": (split("multinomial", 128, 32768), 1536, 2048),
    "Qwen3-30B down": (split("multinomial", 128, 32768), 2048, 768),
    "Qwen3-235B gate-up": (split("multinomial", 128, 32768), 3072, 4096),
    "Qwen3-235B down": (split("multinomial", 128, 32768), 4096, 1536),
}
DECODE = {
    "DeepSeek-V3 gate-up 32 x 20": ((20,) * 32, 4096, 7168),
    "Qwen3-30B gate-up 64 tokens": (split("multinomial", 128, 512), 1536, 2048),
    "8 experts, 1 to 8 rows": (split("within 30 %", 8, 36), 4096, 7168),
}
TOLERANCE = 4e-3  # of the output's norm, of the rows that are looked at


def blocks(size: int) -> int:
    return -(-size // 128)


def scales(mode: str, rows: int, groups: int, n: int, k: int) -> dict[str, torch.Tensor]:
    if mode == ONE:
        shapes = (1,), (groups,)
    elif mode == ROW:
        shapes = (rows,), (groups, n)
    else:
        shapes = (rows, blocks(k)), (groups, blocks(n), blocks(k))
    a, b = (0.5 + torch.rand(shape, device="cuda") for shape in shapes)
    return {"scale_a": a.mT.contiguous().mT if mode == BLOCK_BY_COLUMN else a, "scale_b": b}


def expected(x, w, ends, given, row: int) -> torch.Tensor:
    """A row of the product in float64."""
    group = next(group for group, end in enumerate(ends) if row < end)
    a, b = x[row].double(), w[group].double()
    of_a, of_b = given["scale_a"].double(), given["scale_b"].double()
    if of_b.ndim == 1:
        return (b @ a) * of_a * of_b[group]
    if of_b.ndim == 2:
        return (b @ a) * of_a[row] * of_b[group]
    b = b * of_b[group].repeat_interleave(128, 0)[: len(b)].repeat_interleave(128, 1)[:, : len(a)]
    return b @ (a * of_a[row].repeat_interleave(128)[: len(a)])


class Product:
    """One shape, with copies of the weights twice the size of L2, so that decoding reads them from memory."""

    def __init__(self, sizes: tuple[int, ...], n: int, k: int):
        self.rows, self.ends, self.n, self.k = sum(sizes), list(accumulate(sizes)), n, k
        self.groups = len(sizes)
        self.used = sum(map(bool, sizes))
        self.x = torch.randn(self.rows, k, device="cuda").to(E4M3)
        copies = max(1, min(8, -(-200_000_000 // (self.used * n * k))))
        one = torch.randn(self.groups, n, k, device="cuda", dtype=torch.bfloat16).to(E4M3)
        self.weights = [one.clone() for _ in range(copies)]
        self.offs = torch.tensor(self.ends, device="cuda", dtype=torch.int32)
        self.out = torch.empty(self.rows, n, device="cuda", dtype=torch.bfloat16)
        self.bytes = self.used * n * k + self.rows * (k + 2 * n)
        self.flop = 2 * self.rows * n * k

    def graph(self, mode: str, variant: str | None = None) -> tuple[Graph, str]:
        given: dict[str, Any] = {"offs": self.offs, "out": self.out} | scales(
            mode, self.rows, self.groups, self.n, self.k
        )
        plans = [gg_runtime.Plan(self.x, w.mT, variant=variant, **given) for w in self.weights]
        self.out.fill_(float("nan"))
        plans[0].run()
        for row in (0, self.rows // 2, self.rows - 1):
            right = expected(self.x, self.weights[0], self.ends, given, row)
            error = float(torch.linalg.vector_norm(self.out[row].double() - right) / torch.linalg.vector_norm(right))
            if not error <= TOLERANCE:
                raise ArithmeticError(f"{mode} {variant or ''}: relative error {error:.1e} of row {row}")
        return Graph([plan.run for plan in plans], least=enough(plans[0].run)), plans[0].variant


def config(variant: str) -> str:
    return variant.rpartition("_a")[2].partition("_")[2]


def figure(product: Product, us: float, decoding: bool, copy_gb_s: float) -> str:
    if decoding:
        return f"{us:9.1f} us {product.bytes / us / 1e3 / copy_gb_s:5.3f} of a copy"
    return f"{us:9.1f} us {product.flop / us / 1e6:6.0f} TFLOP/s"


def copy_rate() -> float:
    """Bytes read and written a nanosecond, by a copy of 2 GB."""
    a = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    b = torch.empty_like(a)
    return 2 * a.numel() / Graph([lambda: b.copy_(a)]).us() / 1e3


def run(name: str, product: Product, decoding: bool, copy_gb_s: float) -> None:
    print(f"\n{name}: {product.rows} rows, {product.groups} groups, N={product.n}, K={product.k}", flush=True)
    found = {mode: product.graph(mode) for mode in (ONE, ROW, BLOCK, BLOCK_BY_COLUMN)}
    rested = interleaved_us([graph for graph, _ in found.values()])
    for (mode, (graph, variant)), us in zip(found.items(), rested):
        hot = hot_us(graph)
        print(f"  {mode:28} {figure(product, us, decoding, copy_gb_s)}  x{rested[0] / us:5.3f}  hot {hot:9.1f} us  "
              f"{config(variant)}", flush=True)  # fmt: skip
    for mode in (ROW, BLOCK):
        kernels = [k for k in gg_runtime.kernels() if k["scaling"] == mode and k["out_dtype"] == "bf16"]
        times = []
        for kernel in (one for one in kernels if one["alignment"] == 16):
            graph, variant = product.graph(mode, kernel["name"])
            times.append(f"{config(variant)} {graph.us():.1f}")
        print(f"  {mode} by config: {', '.join(times)}", flush=True)


def quantize(copy_gb_s: float) -> None:
    print("\nquantize_1x128, bytes read and written by a copy's rate")
    for rows, columns in ((32768, 7168), (32768, 2048), (4096, 2048), (640, 7168)):
        x = torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16)
        us = Graph([lambda x=x: gg_runtime.quantize_1x128(x)]).us()
        moved = rows * (3 * columns + 4 * blocks(columns))
        print(f"  {rows} x {columns}: {us:8.1f} us, {moved / us / 1e3 / copy_gb_s:5.3f}", flush=True)


def main() -> None:
    copy_gb_s = copy_rate()
    print(f"{torch.cuda.get_device_name()}, a copy {copy_gb_s:.0f} GB/s")
    for decoding, shapes in ((False, PREFILL), (True, DECODE)):
        for name, shape in shapes.items():
            run(name, Product(*shape), decoding, copy_gb_s)
    quantize(copy_gb_s)


if __name__ == "__main__":
    main()
