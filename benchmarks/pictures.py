"""Bars of each peer on each list and MoE shape, and the roofline. matplotlib is imported where it draws."""

from pathlib import Path

from .lists import comparison as lists_comparison
from .moe import comparison as moe_comparison
from .moe import roofline_us
from .peers import OURS

OUR_COLORS = ("tab:green", "limegreen")
PEER_COLORS = ("tab:blue", "lightskyblue", "tab:red", "lightcoral", "tab:purple", "tab:orange", "tab:brown", "tab:pink")
KIND_COLORS = {"large": "tab:blue", "ragged": "tab:orange", "decode": "tab:green", "fp8": "tab:purple"}


def canvas(size: tuple[float, float]):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot.subplots(figsize=size, layout="constrained")


def save(figure, path: Path) -> None:
    from matplotlib import pyplot

    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def draw_bars(axes, names: list[str], heights: dict[str, dict[str, float]]) -> None:
    """`heights`: of each series, which begins with who it is of, by name."""
    colors = {True: iter(OUR_COLORS), False: iter(PEER_COLORS)}
    width = 0.8 / len(heights)
    for place, (series, by_name) in enumerate(heights.items()):
        positions = [names.index(name) + place * width for name in by_name]
        axes.bar(positions, by_name.values(), width, label=series, color=next(colors[series.startswith(OURS)]))
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xticks([x + 0.4 - width / 2 for x in range(len(names))], names, rotation=20, ha="right")
    axes.figure.legend(fontsize="small", ncols=len(heights), loc="outside lower center")


def lists(rows: list[dict], about: dict, path: Path) -> None:
    """Speed of each peer and layout on each list, the best peer being 1."""
    best = {line["list"]: line["best_peer_us"] for line in lists_comparison(rows)}
    heights = {}
    for row in rows:
        if row["list"] in best and "graph_us" in row:
            series = heights.setdefault(f"{row['peer']} {row['layout']}", {})
            series[row["list"]] = best[row["list"]] / row["graph_us"]
    figure, axes = canvas((14, 5))
    draw_bars(axes, list(best), heights)
    axes.set_ylabel("speed, best peer = 1")
    axes.set_title(f"Grouped GEMM, fp16, kernel time under a CUDA graph: {about['gpu']}, {about['date']}")
    save(figure, path)


def bars(rows: list[dict], ceilings: dict, about: dict, path: Path) -> None:
    """The part of the roofline that each peer reaches on each MoE shape."""
    heights = {}
    for row in rows:
        if "graph_us" in row:
            heights.setdefault(row["peer"], {})[row["shape"]] = roofline_us(row, ceilings) / row["graph_us"]
    names = list(dict.fromkeys(row["shape"] for row in rows))
    figure, axes = canvas((20, 6))
    draw_bars(axes, names, heights)
    axes.set_ylabel("part of the roofline")
    axes.set_title(f"MoE products, kernel time under a CUDA graph: {about['gpu']}, {about['date']}")
    save(figure, path)


def roofline(rows: list[dict], ceilings: dict, about: dict, path: Path) -> None:
    """Achieved TFLOP/s over arithmetic intensity, below the ceilings of the run."""
    figure, axes = canvas((12, 7))
    draw_ceilings(axes, rows, ceilings)
    for number, line in enumerate(moe_comparison(rows, ceilings), start=1):
        x, ours, color = line["flop_per_byte"], line["tflops"], KIND_COLORS[line["kind"]]
        peer = ours / line["speedup_best"]
        axes.plot([x, x], [peer, ours], color=color, linewidth=0.8)
        axes.plot(x, peer, "o", color=color, fillstyle="none")
        axes.plot(x, ours, "o", color=color, label=f"{number} {line['shape']}")
        place = (0, -14 - 8 * (number % 3))  # neighbours at three heights
        axes.annotate(number, (x, min(peer, ours)), place, textcoords="offset points", ha="center", fontsize=7)
    axes.set(xscale="log", yscale="log", xlabel="FLOP a byte", ylabel="TFLOP/s")
    axes.set_title(f"MoE products, gg_runtime (dots) and the best peer (rings): {about['gpu']}, {about['date']}")
    axes.legend(fontsize="small", ncols=2)
    save(figure, path)


def draw_ceilings(axes, rows: list[dict], ceilings: dict) -> None:
    """A line for each dtype: what the copy allows up to where a dense product allows no more."""
    flop_per_byte = [row["flop"] / row["bytes"] for row in rows]
    copy = ceilings["copy_gb_per_s"] / 1e3
    for dtype in dict.fromkeys(row["dtype"] for row in rows if "graph_us" in row):
        dense = ceilings[f"dense_{dtype}_8192_tflops"]
        bends = sorted([min(flop_per_byte) / 2, max(flop_per_byte) * 2, dense / copy])
        label = f"dense {dtype} {dense:.0f} TFLOP/s, copy {copy:.2f} TB/s"
        axes.plot(bends, [min(dense, copy * x) for x in bends], linewidth=1, label=label)
