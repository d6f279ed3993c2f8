"""Ragged products of MoE layers: every peer on every shape, checked on the outputs of the graph that is timed."""

from typing import Any

import torch

from .ceilings import copy_us
from .measured import checked
from .moe_peers import CUBLAS_LOOP, TORCH, RaggedPeer, peers
from .moe_workload import RaggedWorkload
from .peers import OURS, reason
from .shapes import MOE
from .timing import Graph, eager_us, host_us, interleaved_us

TUNED = (
    "DeepSeek-V3 gate-up",
    "Qwen3-30B gate-up",
    "Qwen3-30B decode",
)  # with the tutorial's kernel, tuned just in time


def prepare(peer: RaggedPeer, workload: RaggedWorkload) -> tuple[Graph, float]:
    """The peer's graph, and its error."""
    launches = [peer.bind(copy) for copy in workload.copies]
    return checked(
        [launch.call for launch in launches],
        lambda: [launch.output() for launch in launches],
        lambda: max(workload.check(launch.product(), peer.tolerance) for launch in launches),
    )


def figures(workload: RaggedWorkload, peer: str, graph: Graph, us: float) -> dict:
    """Times in microseconds and rates, for a peer whose graph takes `us` a launch."""
    found = {
        "graph_us": us,
        "eager_us": eager_us(graph.calls, least=graph.launches),
        "tflops": workload.shape.flop / us / 1e6,
        "gb_per_s": workload.shape.bytes / us / 1e3,
    }
    if peer in (OURS, TORCH):
        found["host_us"] = host_us(graph.calls[0], calls=min(50, graph.launches))
    return found


def measure(workload: RaggedWorkload, everyone: list[RaggedPeer]) -> list[dict]:
    """A row for each peer. What fails has its reason in "failed" and no times.

    Decoding is compared with a copy of as many bytes as well: so few do not reach the rate of a large copy.
    """
    shape, rows, timed = workload.shape, [], []
    for peer in everyone:
        row: dict[str, Any] = {"peer": peer.name}
        rows.append(row)
        try:
            graph, row["relative_error"] = prepare(peer, workload)
            timed.append((row, graph))
        except Exception as error:  # a peer's failure is a result; the others still count
            row["failed"] = reason(error)
    copy = copy_us(shape.bytes, len(workload.copies)) if shape.kind == "decode" else None
    for (row, graph), us in zip(timed, interleaved_us([graph for _, graph in timed])):
        row |= figures(workload, row["peer"], graph, us)
        if copy:
            row |= {"copy_us": copy, "of_copy": copy / us}
    return rows


def run() -> list[dict]:
    rows = []
    for name, shape in MOE.items():
        about = {"shape": name, "kind": shape.kind, "dtype": shape.dtype, "flop": shape.flop, "bytes": shape.bytes}
        for row in measure(RaggedWorkload(shape), peers(shape, tuned=name in TUNED)):
            rows.append(about | row)
            if "failed" in row:
                print(f"{name}, {row['peer']}: {row['failed']}")
        torch.cuda.empty_cache()
    return rows


def roofline_us(row: dict, ceilings: dict) -> float:
    """The greater of the times that the flop and the bytes take at the ceilings of the run."""
    flop_us = row["flop"] / ceilings[f"dense_{row['dtype']}_8192_tflops"] / 1e6
    return max(flop_us, row["bytes"] / ceilings["copy_gb_per_s"] / 1e3)


def comparison(rows: list[dict], ceilings: dict) -> list[dict]:
    """For each shape that we and a peer ran: our rates, our parts of the roofline and the copy, our speed-ups."""
    result = []
    for name in dict.fromkeys(row["shape"] for row in rows):
        timed = {row["peer"]: row for row in rows if row["shape"] == name and "graph_us" in row}
        ours = timed.pop(OURS, None)
        if not ours or not timed:
            continue
        best = min(timed.values(), key=lambda row: row["graph_us"])
        line = {key: ours[key] for key in ("shape", "kind", "dtype", "graph_us", "tflops", "gb_per_s")}
        line |= {"flop_per_byte": ours["flop"] / ours["bytes"], "best_peer": best["peer"]}
        line["roofline"] = roofline_us(ours, ceilings) / ours["graph_us"]
        if "of_copy" in ours:
            line["of_copy"] = ours["of_copy"]
        for key, peer in (("cublas", CUBLAS_LOOP), ("torch", TORCH), ("best", best["peer"])):
            if peer in timed:
                line[f"speedup_{key}"] = timed[peer]["graph_us"] / ours["graph_us"]
        result.append(line)
    return result
