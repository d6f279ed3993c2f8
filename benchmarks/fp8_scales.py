"""`python -m benchmarks.fp8_scales [--quick] [--configs] [row ...]`: e4m3 products with scales by row and by block.

Ours beside DeepGEMM and torch on the same data, rested and hot, each checked against float64; what is asked of them; a
dense product and a copy as ceilings; quantize_1x128 beside a copy. `--quick` is for a minute, `--configs` times each
config of the scaled kernels. A row is named by a part of its name.
"""

import argparse
import functools
import gc
from collections.abc import Callable, Sequence
from typing import Any

import torch

import gg_runtime

from . import fp8_calls
from .arguments import parsed
from .ceilings import copy_us
from .fp8_calls import (
    BLOCK,
    CONTIGUOUS,
    E4M3,
    MASKED,
    ONE,
    OURS,
    ROW,
    TORCH,
    TORCH_FAST,
    Product,
    blocks,
)
from .layer_musts import Must
from .measured import checked, measured
from .moe_workload import Launch, RaggedCopy
from .peers import reason
from .shapes import RaggedShape, split
from .timing import HOT_SECONDS, REPEATS, Graph, enough, hot_us, interleaved_us

ROUTED = split("multinomial", 128, 32768)
SHAPES = {
    name: RaggedShape(kind, rows, n, k, "e4m3")
    for name, kind, rows, n, k in (
        ("DeepSeek-V3 gate-up 8 x 4096", "large", (4096,) * 8, 4096, 7168),
        ("DeepSeek-V3 down 8 x 4096", "large", (4096,) * 8, 7168, 2048),
        ("DeepSeek-V3 gate-up 4 x 8192", "large", (8192,) * 4, 4096, 7168),
        ("DeepSeek-V3 down 4 x 8192", "large", (8192,) * 4, 7168, 2048),
        ("Qwen3-30B gate-up", "ragged", ROUTED, 1536, 2048),
        ("Qwen3-30B down", "ragged", ROUTED, 2048, 768),
        ("Qwen3-235B gate-up", "ragged", ROUTED, 3072, 4096),
        ("Qwen3-235B down", "ragged", ROUTED, 4096, 1536),
        ("Qwen3-235B gate-up 128 x 272", "ragged", (272,) * 128, 3072, 4096),
        ("Qwen3-235B gate-up 64 x 400", "ragged", (400,) * 64, 3072, 4096),
        ("DeepSeek-V3 gate-up 32 x 20", "decode", (20,) * 32, 4096, 7168),
        ("Qwen3-30B gate-up 64 tokens", "decode", split("multinomial", 128, 512), 1536, 2048),
        ("8 experts, 1 to 8 rows", "decode", split("within 30 %", 8, 36), 4096, 7168),
    )
}
QUICK = (
    "DeepSeek-V3 gate-up 8 x 4096",
    "DeepSeek-V3 down 8 x 4096",
    "Qwen3-30B gate-up",
    "Qwen3-30B down",
    "DeepSeek-V3 gate-up 32 x 20",
    "Qwen3-30B gate-up 64 tokens",
)
QUICK_REPEATS, QUICK_HOT_SECONDS = 3, 0.1
DENSE = 8192
QUANTIZED = ((32768, 7168), (32768, 2048), (4096, 2048), (640, 7168))
# What is asked: of block scales a multiple of DeepGEMM's speed by the kind of a row, and in decoding a share of a
# copy's; of scales by row a multiple of torch's, with exact sums and with fast ones.
TIMES_DEEP_GEMM = {"large": 1.0, "ragged": 1.0, "decode": 1.07}
OF_COPY = 0.98
TIMES_TORCH = {TORCH: 1.1, TORCH_FAST: 1.0}
SCALING = {BLOCK: "block", ROW: "row", ONE: "tensor"}  # as `gg_runtime.kernels` names the modes


def dense() -> dict[str, float]:
    """TFLOP/s of a large dense e4m3 product with scales by row and column, rested and hot."""
    a, b = (torch.randn(DENSE, DENSE, device="cuda").to(E4M3) for _ in range(2))
    of_a, of_b = torch.ones(DENSE, 1, device="cuda"), torch.ones(1, DENSE, device="cuda")
    multiply = torch._scaled_mm  # pyright: ignore[reportPrivateImportUsage]  torch has no public name for it
    found = {}
    for name, fast in (("fast sums", True), ("exact sums", False)):

        def call(fast: bool = fast) -> torch.Tensor:
            return multiply(a, b.t(), of_a, of_b, out_dtype=torch.bfloat16, use_fast_accum=fast)

        try:
            graph = Graph([call], least=enough(call))
            found[name], found[f"{name}, hot"] = (2 * DENSE**3 / us / 1e6 for us in (graph.us(), hot_us(graph)))
        except Exception as error:  # some versions of torch have no such product
            print(f"dense, {name}: {reason(error)}")
    return found


def graph_of(product: Product, peer: str, bind: Callable[[RaggedCopy], Launch]) -> tuple[Graph, float]:
    """The peer's graph, and its error."""
    launches = [bind(copy) for copy in product.copies]
    return checked(
        [launch.call for launch in launches],
        lambda: [launch.output() for launch in launches],
        lambda: max(product.error(peer, launch.product()) for launch in launches),
    )


def config(variant: str) -> str:
    return variant.rpartition("_a")[2].partition("_")[2]


def config_graphs(product: Product, mode: str) -> dict[str, Graph]:
    """The graph of each config of the kernels with a scale mode, whose output is right."""
    found = {}
    for kernel in gg_runtime.kernels():
        about = tuple(kernel[name] for name in ("source", "scaling", "dtype", "out_dtype", "alignment", "extents"))
        if about == ("rows", SCALING[mode], "e4m3", "bf16", 16, "m_ends"):

            def bind(copy: RaggedCopy, variant: str = kernel["name"]) -> Launch:
                return fp8_calls.ours(product, mode, copy, variant)

            try:
                found[config(kernel["name"])], _ = graph_of(product, mode, bind)
            except Exception as error:  # of a config that is wrong here, the others still count
                print(f"  {kernel['name']}: {reason(error)}", flush=True)
    return found


def measure(name: str, quick: bool = False, configs: bool = False) -> dict[str, Any]:
    shape = SHAPES[name]
    product = Product(shape)
    row: dict[str, Any] = {"row": name, "kind": shape.kind, "flop": shape.flop, "bytes": shape.bytes}
    makers = {
        peer: functools.partial(graph_of, product, peer, bind) for peer, bind in fp8_calls.peers(product, quick).items()
    }
    row |= measured(makers, *((QUICK_REPEATS, QUICK_HOT_SECONDS) if quick else (REPEATS, HOT_SECONDS)))
    if shape.kind == "decode":
        row["copy_us"] = copy_us(shape.bytes, len(product.copies))
    row["variant"] = {
        mode: config(gg_runtime.Plan(c.A, c.B, offs=c.offs, out=c.C, scale_a=a, scale_b=b).variant)
        for c in product.copies[:1]
        for mode, (a, b) in ((BLOCK, product.scales.block), (ROW, product.scales.row))
    }
    if configs:
        by_mode = {mode: config_graphs(product, mode) for mode in (BLOCK, ROW)}
        row["configs"] = {
            mode: dict(zip(found, interleaved_us(list(found.values()), QUICK_REPEATS)))
            for mode, found in by_mode.items()
        }
    return row


def rows_of(names: Sequence[str], quick: bool = False, configs: bool = False) -> list[dict]:
    rows = []
    for name in names:
        try:
            rows.append(measure(name, quick, configs))
        except Exception as error:  # no workload, no memory
            rows.append({"row": name, "kind": SHAPES[name].kind, "failed": {BLOCK: reason(error)}})
        print(table(rows[-1:]), flush=True)
        gc.collect()
        torch.cuda.empty_cache()
    return rows


def quantized() -> list[dict]:
    """quantize_1x128 beside a copy of as many bytes."""
    found = []
    for rows, columns in QUANTIZED:
        x = torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16)
        try:
            us = Graph([lambda x=x: gg_runtime.quantize_1x128(x)]).us()
        except Exception as error:  # of a GPU that has no e4m3
            print(f"quantize_1x128 {rows} x {columns}: {reason(error)}")
            continue
        moved = rows * (3 * columns + 4 * blocks(columns))
        found.append({"quantized": f"{rows} x {columns}", "us": us, "of_copy": copy_us(moved, 1) / us})
    return found


def run() -> dict:
    return {"rows": rows_of(tuple(SHAPES)), "dense": dense(), "quantized": quantized()}


def lost(row: dict) -> bool:
    """Whether one of ours failed."""
    return any(mode in row["failed"] for mode in OURS)


def musts(row: dict) -> list[Must]:
    """Those whose figures are there, rested and hot."""
    found = []
    for name, times in (("", row.get("us", {})), ("hot ", row.get("hot_us", {}))):
        theirs = [times[peer] for peer in (CONTIGUOUS, MASKED) if peer in times]
        if theirs and BLOCK in times:
            asked = TIMES_DEEP_GEMM[row["kind"]]
            found.append(Must(f"{name}block × DeepGEMM", min(theirs) / times[BLOCK], asked, at_least=True))
        for peer, asked in TIMES_TORCH.items():
            if peer in times and ROW in times and row["kind"] != "decode":
                found.append(Must(f"{name}row × {peer}", times[peer] / times[ROW], asked, at_least=True))
    if "copy_us" in row and BLOCK in row["us"]:
        found.append(Must("block, of a copy", row["copy_us"] / row["us"][BLOCK], OF_COPY, at_least=True))
    return found


def table(rows: list[dict]) -> str:
    """Microseconds rested and hot, TFLOP/s, how often as fast as ours with block scales, and the error; then musts."""
    lines = []
    for row in rows:
        lines.append(row["row"])
        for peer, us in row.get("us", {}).items():
            variant, hot = row["variant"].get(peer, ""), row["hot_us"][peer]
            lines.append(
                f"  {peer:28} {us:9.1f} hot {hot:9.1f} us {row['flop'] / us / 1e6:6.0f} TFLOP/s  "
                f"x{row['us'].get(BLOCK, us) / us:6.3f} hot x{row['hot_us'].get(BLOCK, hot) / hot:6.3f}"
                f"  error {row['error'][peer]:.1e} {variant}"
            )
        for mode, times in row.get("configs", {}).items():
            lines.append(f"  {mode} by config: " + ", ".join(f"{name} {us:.1f}" for name, us in times.items()))
        lines += [f"  {peer} FAILED: {why}" for peer, why in row["failed"].items()]
        lines.append("  " + " · ".join(map(str, musts(row))))
    return "\n".join(lines)


def closing(found: dict) -> str:
    """The ceiling, quantize_1x128, and how many musts are met."""
    of_dense = ", ".join(f"{name} {tflops:.0f}" for name, tflops in found["dense"].items())
    lines = [f"dense e4m3 {DENSE}^3 by row, TFLOP/s: {of_dense}"]
    lines += [f"quantize_1x128 {one['quantized']}: {one['us']:.1f} us, {one['of_copy']:.2f} of a copy"
              for one in found.get("quantized", ())]  # fmt: skip
    all_musts = [must for row in found["rows"] for must in musts(row)]
    return "\n".join([*lines, f"fp8: {sum(must.met for must in all_musts)} of {len(all_musts)} musts met (NO: not)"])


def summary(found: dict) -> str:
    return f"{table(found['rows'])}\n{closing(found)}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fp8_scales", description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="row", help="parts of rows' names; all by default, with --quick six")
    parser.add_argument("--quick", action="store_true", help="fewer peers and repeats: about a minute")
    parser.add_argument("--configs", action="store_true", help="each config of the kernels with scales too")
    given = parsed(parser)
    named = [name for name in SHAPES if any(part in name for part in given.rows)]
    names = named if given.rows else QUICK if given.quick else tuple(SHAPES)
    print(f"{torch.cuda.get_device_name()}, gg_runtime {gg_runtime.__version__}, torch {torch.__version__}")
    found = {"rows": rows_of(names, given.quick, given.configs), "dense": dense()}
    if not given.quick and not given.rows:
        found["quantized"] = quantized()
    print(closing(found))


if __name__ == "__main__":
    main()
