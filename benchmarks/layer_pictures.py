"""Pictures of the layer, as SVG: where its time goes, ours and torch's, and the roofline.

`python -m benchmarks.layer_pictures build/bench/results.json docs/figures` draws a run's again.
"""

import argparse
import json
from pathlib import Path

from .layer_calls import DOWN, GATHERED, LAYER, UP
from .layer_kernels import PARTS
from .layer_shapes import layer_named
from .layer_torch import best_torch
from .pictures import canvas

PART_COLORS = dict(zip(PARTS, ("#7f7f7f", "#bcbd22", "#1f77b4", "#ff7f0e", "#17becf", "#d62728")))
REST = "between kernels"
REST_COLOR = "#e5e5e5"
ROOFS = {UP: ("up, plain", "s", "#9ecae1"), GATHERED: ("up, activation, gather", "D", "#3182bd"),
         DOWN: ("down", "^", "#17becf"), LAYER: ("whole layer", "o", "#2ca02c")}  # fmt: skip


def save_svg(figure, path: Path) -> None:
    """With text as text, the same bytes for the same figures."""
    from matplotlib import pyplot

    path.parent.mkdir(parents=True, exist_ok=True)
    with pyplot.rc_context({"svg.fonttype": "none", "svg.hashsalt": path.stem, "font.family": "sans-serif"}):
        figure.savefig(path, metadata={"Date": None}, facecolor="white")
    pyplot.close(figure)


def shares(parts: dict[str, float], total: float) -> dict[str, float]:
    """Each part's µs of `total`, which a profiler's times may exceed by a little: they are scaled then."""
    measured = sum(parts.values())
    scale = min(1.0, total / measured)
    found = {name: us * scale for name, us in parts.items()}
    return found | {REST: total - measured * scale}


def bars(rows: list[dict], about: dict, path: Path) -> None:
    """Two bars a layer, ours above torch's, in parts of torch's time."""
    drawn = [row for row in rows if LAYER in row.get("kernels", {}) and best_torch(row["us"]) in row["kernels"]]
    figure, axes = canvas((12, 1.0 + 0.9 * len(drawn)))
    labels = []
    for place, row in enumerate(drawn):
        theirs = best_torch(row["us"])
        whole = row["us"][theirs]
        for name, y in ((LAYER, place - 0.2), (theirs, place + 0.2)):
            bar(axes, y, shares(row["kernels"][name], row["us"][name]), whole, f"{row['us'][name]:.0f} µs")
        labels.append(row["layer"])
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.set(xlim=(0, 1.12), xlabel="time, the compiled torch layer = 1 (above: gg_runtime, below: torch)")
    axes.set_title(f"A layer of experts, forward, under a CUDA graph: {about['gpu']}, {about['date']}")
    handles, names = axes.get_legend_handles_labels()
    legend = dict(zip(names, handles))
    figure.legend(legend.values(), legend.keys(), fontsize="small", ncols=len(legend), loc="outside lower center")
    save_svg(figure, path)


def bar(axes, y: float, parts: dict[str, float], whole: float, told: str) -> None:
    left = 0.0
    for name, us in parts.items():
        color = PART_COLORS.get(name, REST_COLOR)
        axes.barh(y, us / whole, 0.36, left=left, color=color, label=name, edgecolor="white", linewidth=0.3)
        left += us / whole
    axes.text(left + 0.005, y, told, va="center", fontsize=8)


def roof_points(row: dict) -> dict[str, tuple[float, float]]:
    """(FLOP a byte, TFLOP/s) of what was timed."""
    shape, used, us = layer_named(row["layer"]), row["used"], row["us"]
    work = {
        UP: (shape.up_flop, shape.up_bytes(used, gathered=True) + shape.preactivation_bytes // 2),
        GATHERED: (shape.up_flop, shape.up_bytes(used, gathered=False)),
        DOWN: (shape.down_flop, shape.down_bytes(used)),
        LAYER: (shape.flop, shape.bytes(used)),
    }
    return {name: (flop / moved, flop / us[name] / 1e6) for name, (flop, moved) in work.items() if name in us}


def roofline(rows: list[dict], ceilings: dict, about: dict, path: Path) -> None:
    """The products and whole layers, torch's as rings, below the ceilings of the run."""
    figure, axes = canvas((12, 7))
    dense, copy = ceilings["dense_bf16_8192_tflops"], ceilings["copy_gb_per_s"] / 1e3
    bends = [2, dense / copy, 5_000]
    label = f"dense bf16 {dense:.0f} TFLOP/s, copy {copy:.2f} TB/s"
    axes.plot(bends, [min(dense, copy * x) for x in bends], color="black", linewidth=1, label=label)
    for place, row in enumerate(rows):
        if not row.get("us"):
            continue
        for name, (x, rate) in roof_points(row).items():
            told, marker, color = ROOFS[name]
            axes.plot(x, rate, marker, color=color, label=told)
            if name == LAYER:
                axes.annotate(
                    row["layer"], (x, rate), (4, -10 - 9 * (place % 2)), textcoords="offset points", fontsize=7
                )
        theirs = best_torch(row["us"])
        if theirs:
            shape = layer_named(row["layer"])
            x = shape.flop / shape.bytes(row["used"])
            axes.plot(
                x,
                shape.flop / row["us"][theirs] / 1e6,
                "o",
                color="#d62728",
                fillstyle="none",
                label="compiled torch layer",
            )
    handles, names = axes.get_legend_handles_labels()
    legend = dict(zip(names, handles))
    axes.legend(legend.values(), legend.keys(), fontsize="small", loc="lower right")
    axes.set(xscale="log", yscale="log", xlabel="FLOP a byte", ylabel="TFLOP/s")
    axes.set_title(f"A layer of experts and its products: {about['gpu']}, {about['date']}")
    save_svg(figure, path)


def draw(results: dict, folder: Path) -> None:
    rows, about = results["layer"], results["environment"]
    if any("us" in row and row["us"] for row in rows):
        bars(rows, about, folder / "layer_bars.svg")
        roofline(rows, results["ceilings"], about, folder / "layer_roofline.svg")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.layer_pictures", description=__doc__)
    parser.add_argument("results", type=Path, help="results.json of python -m benchmarks")
    parser.add_argument("folder", type=Path, help="for the pictures")
    arguments = parser.parse_args()
    draw(json.loads(arguments.results.read_text()), arguments.folder)
