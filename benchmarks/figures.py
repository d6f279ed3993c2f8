"""The tables of docs/performance.md, from a run's results: `python -m benchmarks.figures build/bench/results.json`."""

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path

from . import lists, moe
from .layer_calls import COMBINE, DOWN, GATHERED, LAYER, ROUTE, UP, VLLM, VLLM_PRODUCTS
from .layer_shapes import layer_named
from .layer_torch import best_torch
from .shapes import MOE

ROOFLINE = ("µs", "TFLOP/s", "TB/s", "roofline")
COPY = ("µs", "TB/s", "of a large copy", "of a copy of as many bytes")
NONE = "–"  # of what was not timed, or failed
SPEEDUPS = {"× loop": "cublas", "× torch": "torch", "× best": "best"}


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(head), *map(list, rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def microseconds(us: float) -> str:
    return f"{us:.2f}" if us < 20 else f"{us:.1f}" if us < 200 else f"{us:.0f}"


def per_cent(ratio: float, decimals: int = 0) -> str:
    return f"{100 * ratio:.{decimals}f} %"


def layer(line: dict) -> list[str]:
    """A layer's name and sizes, K → N; the rows of the expert with fewest and of that with most."""
    shape = MOE[line["shape"]]
    fewest, most = min(shape.group_rows), max(shape.group_rows)
    each = str(most) if fewest == most else f"{fewest}–{most}"
    return [f"{line['shape']}, {shape.depth} → {shape.columns}", str(shape.experts), str(shape.rows), each]


def rates(line: dict) -> list[str]:
    """Under ROOFLINE, or under COPY where reading weights is all."""
    us, bytes_rate = microseconds(line["graph_us"]), f"{line['gb_per_s'] / 1e3:.2f}"
    if "of_copy" in line:
        return [us, bytes_rate, per_cent(line["roofline"]), per_cent(line["of_copy"], 1)]
    return [us, f"{line['tflops']:.0f}", bytes_rate, per_cent(line["roofline"])]


def speedups(line: dict) -> list[str]:
    ratios = (line.get(f"speedup_{key}") for key in SPEEDUPS.values())
    return [f"{ratio:.2f}" if ratio else NONE for ratio in ratios] + [line["best_peer"]]


def layers_tables(rows: list[dict], ceilings: dict) -> list[str]:
    """One of what products bound, one of what memory does."""
    lines, tables = moe.comparison(rows, ceilings), []
    for columns, decoding in ((ROOFLINE, False), (COPY, True)):
        own = [[*layer(line), *rates(line), *speedups(line)] for line in lines if ("of_copy" in line) == decoding]
        if own:
            tables.append(table(["layer", "E", "rows", "an expert", *columns, *SPEEDUPS, "best peer"], own))
    return tables


def whole_layers_table(rows: list[dict]) -> str:
    """Whole layers of experts: their parts, and the speed-up over the best compiled torch layer."""
    head = ["layer", "tokens × k, E", "H, I", "up", "with gather, activation", "down", "`route`", "`combine`"]
    head += ["`fused_experts`", "torch", "× torch", "hot × torch"]
    lines = []
    for row in rows:
        shape, us, hot = layer_named(row["layer"]), row.get("us", {}), row.get("hot_us", {})
        line = [
            row["layer"],
            f"{shape.tokens} × {shape.top_k}, {shape.experts}",
            f"{shape.hidden}, {shape.intermediate}",
        ]
        timed = [us.get(part) for part in (UP, GATHERED, DOWN, ROUTE, COMBINE, LAYER)] + [us.get(best_torch(us) or "")]
        line += [microseconds(figure) if figure else NONE for figure in timed]
        for times in (us, hot):
            theirs = best_torch(times)
            line.append(f"{times[theirs] / times[LAYER]:.2f}" if theirs and LAYER in times else NONE)
        lines.append(line)
    return table(head, lines)


def vllm_table(rows: list[dict]) -> str:
    """Whole layers beside vLLM's of Triton kernels, and beside its two products alone."""
    head = ["layer", "`fused_experts`", "vLLM's", "×", "hot ×", "its products", "×", "hot ×"]
    lines = []
    for row in rows:
        us, hot = row.get("us", {}), row.get("hot_us", {})
        line = [row["layer"], microseconds(us[LAYER])]
        for peer in (VLLM, VLLM_PRODUCTS):
            line.append(microseconds(us[peer]) if peer in us else NONE)
            line += [f"{times[peer] / times[LAYER]:.2f}" if peer in times else NONE for times in (us, hot)]
        lines.append(line)
    return table(head, lines)


def lists_table(rows: list[dict]) -> str:
    head = ["list", "best peer", "its µs", "NN", "× best", "NT", "× best"]
    lines = []
    for line in lists.comparison(rows):
        ours = []
        for layout in ("nn", "nt"):
            us, speedup = line.get(f"ours_{layout}_us"), line.get(f"speedup_{layout}")
            ours += [microseconds(us), f"{speedup:.2f}"] if us else [NONE, NONE]
        lines.append([line["list"], line["best_peer"], microseconds(line["best_peer_us"]), *ours])
    return table(head, lines)


def markdown(results: dict) -> str:
    parts = []
    if "layer" in results:
        parts.append(whole_layers_table(results["layer"]))
        beside_vllm = [row for row in results["layer"] if VLLM in row.get("us", {}) and LAYER in row["us"]]
        if beside_vllm:
            parts.append(vllm_table(beside_vllm))
    if "moe" in results:
        parts += layers_tables(results["moe"], results["ceilings"])
    if "lists" in results:
        parts.append(lists_table(results["lists"]))
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.figures", description=__doc__)
    parser.add_argument("results", type=Path, help="results.json of python -m benchmarks")
    sys.stdout.write(markdown(json.loads(parser.parse_args().results.read_text())))
