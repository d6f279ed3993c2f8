"""Problem lists: every peer on every list, checked on the outputs of the graph that is timed."""

from typing import Any

import torch

from .peers import OURS, Peer, peers, reason
from .shapes import LISTS
from .timing import Graph, eager_us, host_us, interleaved_us
from .workload import Workload

QUEUE = 512  # launches that a busy GPU holds without making the host wait; cuBLAS in a loop makes one a group


def prepare(peer: Peer, layout: str, workload: Workload) -> tuple[Graph, float]:
    """The peer's graph, and the error of the outputs that it wrote over poison."""
    graph = Graph([peer.kernel(copy, layout) for copy in workload.copies])
    workload.poison()
    graph.run()
    return graph, workload.check()


def figures(peer: Peer, layout: str, workload: Workload, us: float) -> dict:
    """Times in microseconds and rates, for a peer whose graph takes `us`."""
    eager = [peer.eager(copy, layout) for copy in workload.copies]
    return {
        "graph_us": us,
        "eager_us": eager_us(eager),
        "host_us": host_us(eager[0], calls=max(2, min(50, QUEUE // len(workload.shapes)))),
        "tflops": workload.flop / us / 1e6,
        "gb_per_s": workload.bytes / us / 1e3,
    }


def measure(workload: Workload, everyone: list[Peer]) -> list[dict]:
    """A row for each peer and layout. What fails has its reason in "failed" and no times."""
    rows, graphs = [], []
    for peer in everyone:
        for layout in peer.layouts if peer.takes(workload.shapes) else ():
            row: dict[str, Any] = {"peer": peer.name, "layout": layout}
            rows.append(row)
            try:
                graph, row["relative_error"] = prepare(peer, layout, workload)
                graphs.append((row, peer, layout, graph))
            except Exception as error:  # a peer's failure is a result; the others still count
                row["failed"] = reason(error)
    times = interleaved_us([graph for *_, graph in graphs])
    for (row, peer, layout, _), us in zip(graphs, times):
        row |= figures(peer, layout, workload, us)
    return rows


def run() -> list[dict]:
    rows, everyone = [], peers()
    for name, shapes in LISTS.items():
        workload = Workload(shapes)
        for row in measure(workload, everyone):
            rows.append({"list": name} | row)
            if "failed" in row:
                print(f"{name}, {row['peer']} {row['layout']}: {row['failed']}")
        del workload
        torch.cuda.empty_cache()
    return rows


def comparison(rows: list[dict]) -> list[dict]:
    """For each list: the best peer's time, ours for each layout, and ours as a speed-up over the best peer."""
    result = []
    for name in dict.fromkeys(row["list"] for row in rows):
        timed = [row for row in rows if row["list"] == name and "graph_us" in row]
        others = [row for row in timed if row["peer"] != OURS]
        if not others:
            continue
        best = min(others, key=lambda row: row["graph_us"])
        line = {"list": name, "best_peer": f"{best['peer']} {best['layout']}", "best_peer_us": best["graph_us"]}
        for row in timed:
            if row["peer"] == OURS:
                line[f"ours_{row['layout']}_us"] = row["graph_us"]
                line[f"speedup_{row['layout']}"] = best["graph_us"] / row["graph_us"]
        result.append(line)
    return result
