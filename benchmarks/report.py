"""Results as short tables, JSON, CSV, Markdown and pictures."""

import csv
import datetime
import importlib.metadata
import json
import platform
import statistics
import subprocess
from pathlib import Path

import torch

import gg_runtime

from . import (
    figures,
    forms,
    fp8_scales,
    layer_musts,
    layer_pictures,
    lists,
    moe,
    pictures,
    routing,
    train,
    transformers_model,
)

WORST = 5


def environment() -> dict:
    return {
        "date": datetime.date.today().isoformat(),
        "gpu": torch.cuda.get_device_name(),
        "driver": driver(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "gg_runtime": gg_runtime.__version__,
        "triton": version("triton"),
        "deep_gemm": version("deep_gemm"),
        "transformers": version("transformers"),
    }


def version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def driver() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]


def lists_table(rows: list[dict]) -> str:
    """Times under a graph in microseconds; a speed-up below 1 means that a peer was faster."""
    lines = [f"{'list':24} {'best peer':18} {'us':>9} {'ours nn':>9} {'ours nt':>9} {'x nn':>6} {'x nt':>6}"]
    for line in lists.comparison(rows):
        times = "".join(f" {line.get(f'ours_{layout}_us', float('nan')):9.2f}" for layout in ("nn", "nt"))
        ratios = "".join(f" {line.get(f'speedup_{layout}', float('nan')):6.2f}" for layout in ("nn", "nt"))
        lines.append(f"{line['list']:24} {line['best_peer']:18} {line['best_peer_us']:9.2f}{times}{ratios}")
    lines += [f"{row['list']}, {row['peer']} {row['layout']} FAILED: {why}" for row, why in failures(rows)]
    return "\n".join(lines)


def failures(rows: list[dict]) -> list[tuple[dict, str]]:
    """Of peers, whom the best of a row then leaves out."""
    return [(row, row["failed"]) for row in rows if "failed" in row]


def moe_table(rows: list[dict], ceilings: dict) -> str:
    """Our figures and speed-ups under a graph: over the cuBLAS loop, torch.grouped_mm and the best peer of the row.

    "of copy": the rate of a copy of as many bytes, where that was measured.
    """
    lines, kind = [], None
    head = f"{'TFLOP/s':>9} {'GB/s':>6} {'roofline':>8} {'of copy':>8}"
    head += f" {'x loop':>7} {'x torch':>7} {'x best':>7} best peer"
    for line in moe.comparison(rows, ceilings):
        if line["kind"] != kind:
            kind = line["kind"]
            lines.append(f"{kind:24} {head}")
        ratios = "".join(f" {line.get(f'speedup_{key}', float('nan')):7.2f}" for key in ("cublas", "torch", "best"))
        rates = f"{line['tflops']:9.1f} {line['gb_per_s']:6.0f} {line['roofline']:8.1%}"
        copy = f"{line['of_copy']:.1%}" if "of_copy" in line else "-"
        lines.append(f"{line['shape']:24} {rates} {copy:>8}{ratios} {line['best_peer']}")
    lines += [f"{row['shape']}, {row['peer']} FAILED: {why}" for row, why in failures(rows)]
    return "\n".join(lines)


def unseen_table(rows: list[dict]) -> str:
    """What the choice loses, on average, at most, and where it loses most."""
    done = sorted((row for row in rows if "failed" not in row), key=lambda row: -row["loss_percent"])
    if not done:
        return "unseen: every shape failed"
    losses = [row["loss_percent"] for row in done]
    lines = [f"choice on {len(done)} unseen shapes: mean loss {statistics.mean(losses):.2f} %, most {losses[0]:.1f} %"]
    for row in done[:WORST]:
        shape = f"{row['experts']} experts, {row['rows']} rows {row['split']}, N {row['columns']}, K {row['depth']}"
        lines.append(f"{row['loss_percent']:5.1f} % {shape}: {row['choice']} instead of {row['best']}")
    return "\n".join(lines)


def summary(results: dict) -> str:
    parts = [", ".join(f"{key} {value}" for key, value in results["environment"].items())]
    for section in ("ceilings", "host"):
        if section in results:
            parts.append("\n".join(f"{key:32} {value:10.2f}" for key, value in results[section].items()))
    if "lists" in results:
        parts.append(lists_table(results["lists"]))
    if "unseen" in results:
        parts.append(unseen_table(results["unseen"]))
    if "routing" in results:
        parts.append(routing.table(results["routing"]))
    if "forms" in results:
        parts.append(forms.table(results["forms"]))
    if "fp8" in results:
        parts.append(fp8_scales.summary(results["fp8"]))
    if "train" in results:
        parts.append(train.table(results["train"]))
    if "moe" in results:
        parts.append(moe_table(results["moe"], results["ceilings"]))
    if "model" in results:
        parts.append(transformers_model.table(results["model"]))
    if "layer" in results:
        parts.append(layer_musts.table(results["layer"], results["ceilings"]))
    return "\n".join(parts)


def keep(results: dict, folder: Path) -> None:
    """What is there so far: a later part may not come back."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(json.dumps(results, indent=1) + "\n")


def write(results: dict, folder: Path, drawn: Path) -> None:
    """Tables and pictures of the parts that compare; the layer's pictures go to `drawn`."""
    rows = [{"part": part} | row for part in ("lists", "moe", "routing", "unseen") for row in results.get(part, ())]
    if rows:
        fields = list(dict.fromkeys(field for row in rows for field in row))
        with open(folder / "results.csv", "w", newline="") as file:
            writer = csv.DictWriter(file, fields)
            writer.writeheader()
            writer.writerows(rows)
    (folder / "results.md").write_text(figures.markdown(results))
    about = results["environment"]
    if timed(results.get("lists", ())):
        pictures.lists(results["lists"], about, folder / "results.png")
    if timed(results.get("moe", ())):
        pictures.bars(results["moe"], results["ceilings"], about, folder / "bars.png")
        pictures.roofline(results["moe"], results["ceilings"], about, folder / "roofline.png")
    if "layer" in results:
        layer_pictures.draw(results, drawn)


def timed(rows: list[dict]) -> bool:
    return any("graph_us" in row for row in rows)
