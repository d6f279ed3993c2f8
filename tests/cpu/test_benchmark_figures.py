"""The tables of docs/performance.md, from results that stand for a run's."""

from pathlib import Path

import pytest

pytest.importorskip("torch")

from benchmarks import figures
from benchmarks.shapes import LISTS, MOE

CEILINGS = {"dense_bf16_8192_tflops": 800.0, "dense_e4m3_8192_tflops": 1500.0, "copy_gb_per_s": 4000.0}


def row(name, peer, us, **more):
    shape = MOE[name]
    about = {"shape": name, "kind": shape.kind, "dtype": shape.dtype, "flop": shape.flop, "bytes": shape.bytes}
    return about | {"peer": peer, "graph_us": us, "tflops": shape.flop / us / 1e6, "gb_per_s": 250.0} | more


def test_layers_that_memory_bounds_are_apart_and_missing_peers_are_dashes():
    flop_us = MOE["Llama-4"].flop / 800e6
    rows = [
        row("Llama-4", "gg_runtime", 2 * flop_us),
        row("Llama-4", "torch grouped_mm", 3 * flop_us),
        row("Mixtral decode", "gg_runtime", 400.0, of_copy=0.985),
        row("Mixtral decode", "cuBLAS loop", 500.0),
        row("DeepSeek-V3 down", "gg_runtime", 1.0),  # nobody to compare with
    ]
    products, memory = figures.layers_tables(rows, CEILINGS)
    assert products.splitlines()[2:] == [
        f"| Llama-4, 5120 → 8192 | 16 | 131072 | 8192 | {2 * flop_us:.0f} | 400 | 0.25 | 50 % | – | 1.50 | 1.50 "
        "| torch grouped_mm |"
    ]
    few, many = min(MOE["Mixtral decode"].group_rows), max(MOE["Mixtral decode"].group_rows)
    (line,) = memory.splitlines()[2:]
    assert line.startswith(f"| Mixtral decode, 4096 → 28672 | 8 | 32 | {few}–{many} | 400 | 0.25 |")
    assert line.endswith("| 98.5 % | 1.25 | – | 1.25 | cuBLAS loop |")


def test_lists_are_compared_with_the_best_peer_in_both_layouts():
    times = {("gg_runtime", "nn"): 4.0, ("gg_runtime", "nt"): 8.0, ("cuBLAS loop", "nn"): 6.0, ("other", "nt"): 50.0}
    rows = [{"list": "a", "peer": peer, "layout": layout, "graph_us": us} for (peer, layout), us in times.items()]
    assert figures.lists_table(rows).splitlines()[-1] == "| a | cuBLAS loop nn | 6.00 | 4.00 | 1.50 | 8.00 | 0.75 |"
    rows[1] = {"list": "a", "peer": "gg_runtime", "layout": "nt", "failed": "CudaError"}
    assert figures.lists_table(rows).splitlines()[-1] == "| a | cuBLAS loop nn | 6.00 | 4.00 | 1.50 | – | – |"


def test_the_page_has_a_row_for_all_that_is_timed():
    page = Path(__file__).parents[2].joinpath("docs/performance.md").read_text()
    labels = [f"{name}, {shape.depth} → {shape.columns}" for name, shape in MOE.items()]
    missing = [label for label in [*labels, *LISTS] if f"\n| {label} |" not in page]
    assert not missing
