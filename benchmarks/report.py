"""Results as a short table, JSON, CSV and a picture."""

import csv
import datetime
import json
import platform
import subprocess
from pathlib import Path

import torch

import gg_runtime

from .lists import comparison
from .peers import OURS

OUR_COLORS = {"nn": "tab:green", "nt": "limegreen"}
PEER_COLORS = ("tab:blue", "lightskyblue", "tab:red", "lightcoral", "tab:purple", "tab:orange")


def environment() -> dict:
    found = {
        "date": datetime.date.today().isoformat(),
        "gpu": torch.cuda.get_device_name(),
        "driver": driver(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "gg_runtime": gg_runtime.__version__,
    }
    try:
        import triton

        found["triton"] = triton.__version__
    except ModuleNotFoundError:
        found["triton"] = None
    return found


def driver() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]


def table(rows: list[dict]) -> str:
    """Times under a graph in microseconds; a speed-up below 1 means that a peer was faster."""
    lines = [f"{'list':24} {'best peer':18} {'us':>9} {'ours nn':>9} {'ours nt':>9} {'x nn':>6} {'x nt':>6}"]
    for line in comparison(rows):
        times = "".join(f" {line.get(f'ours_{layout}_us', float('nan')):9.2f}" for layout in ("nn", "nt"))
        ratios = "".join(f" {line.get(f'speedup_{layout}', float('nan')):6.2f}" for layout in ("nn", "nt"))
        lines.append(f"{line['list']:24} {line['best_peer']:18} {line['best_peer_us']:9.2f}{times}{ratios}")
    return "\n".join(lines)


def summary(results: dict) -> str:
    parts = [", ".join(f"{key} {value}" for key, value in results["environment"].items())]
    for section in ("ceilings", "host"):
        if section in results:
            parts.append("\n".join(f"{key:32} {value:10.2f}" for key, value in results[section].items()))
    if "lists" in results:
        parts.append(table(results["lists"]))
    return "\n".join(parts)


def write(results: dict, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    rows = results.get("lists", [])
    if not rows:
        return
    fields = list(dict.fromkeys(field for row in rows for field in row))
    with open(folder / "results.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, fields)
        writer.writeheader()
        writer.writerows(rows)
    picture(rows, results["environment"], folder / "results.png")


def picture(rows: list[dict], about: dict, path: Path) -> None:
    """Speed of each peer and layout on each list, the best peer being 1."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    best = {line["list"]: line["best_peer_us"] for line in comparison(rows)}
    series = list(dict.fromkeys((row["peer"], row["layout"]) for row in rows))
    figure, axes = pyplot.subplots(figsize=(14, 5), layout="constrained")
    width = 0.8 / len(series)
    others = iter(PEER_COLORS)
    for place, (peer, layout) in enumerate(series):
        bars = [
            (list(best).index(row["list"]), best[row["list"]] / row["graph_us"])
            for row in rows
            if (row["peer"], row["layout"]) == (peer, layout) and row["list"] in best and "graph_us" in row
        ]
        color = OUR_COLORS[layout] if peer == OURS else next(others)
        positions, speeds = [x + place * width for x, _ in bars], [y for _, y in bars]
        axes.bar(positions, speeds, width, label=f"{peer} {layout}", color=color)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xticks([x + 0.4 - width / 2 for x in range(len(best))], list(best), rotation=20, ha="right")
    axes.set_ylabel("speed, best peer = 1")
    axes.set_title(f"Grouped GEMM, fp16, kernel time under a CUDA graph: {about['gpu']}, {about['date']}")
    axes.legend(fontsize="small", ncols=3)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
