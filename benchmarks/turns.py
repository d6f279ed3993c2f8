"""`python -m benchmarks.turns BEFORE AFTER`: two wheels' kernels and host times, in turns of processes of their own.

BEFORE and AFTER are folders that wheels were installed into (`pip install --target`). The ratio is before / after:
above 1, the second wheel is faster. A figure is the median of the turns; host times are the least, as neighbours on the
host only ever add to them. `--rows fp8` times each config of the kernels for e4m3, rested and hot.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys

import torch

from . import fp8_scales, host, lists, moe, moe_peers
from .arguments import parsed
from .fp8_calls import BLOCK, ONE, ROW, Product
from .measured import rested_and_hot
from .moe_workload import RaggedWorkload
from .peers import OURS, peers
from .shapes import LISTS, MOE
from .timing import Graph
from .workload import Workload

HOST, FP8 = "host: ", "fp8: "


def list_graphs(workload: Workload) -> dict[str, Graph]:
    (ours,) = (peer for peer in peers() if peer.name == OURS)
    return {layout: lists.prepare(ours, layout, workload)[0] for layout in ours.layouts}


def fp8_configs(name: str) -> dict[str, float]:
    """Each config of each scale mode on one product of `benchmarks.fp8_scales`, rested and hot."""
    product = Product(fp8_scales.SHAPES[name])
    graphs = {
        f"{FP8}{name}, {mode} {config}": graph
        for mode in (BLOCK, ROW, ONE)
        for config, graph in fp8_scales.config_graphs(product, mode).items()
    }
    times = rested_and_hot(graphs)
    return times["us"] | {f"{config}, hot": us for config, us in times["hot_us"].items()}


def once(rows: str) -> dict[str, float]:
    """Microseconds of the rows whose names have `rows` in them, with the wheel that is imported here.

    Products are checked.
    """
    found = {}
    for name, shapes in LISTS.items():
        for layout, graph in list_graphs(Workload(shapes)).items() if rows in name else ():
            found[f"{name} {layout}"] = graph.us()
        torch.cuda.empty_cache()
    for name, shape in MOE.items():
        if rows in name:
            found[name] = moe.prepare(moe_peers.RaggedPeer(OURS, moe_peers.ours), RaggedWorkload(shape))[0].us()
            torch.cuda.empty_cache()
    for name in fp8_scales.SHAPES if rows else ():  # some minutes a turn: only where they are asked for
        if rows in f"{FP8}{name}":
            found |= fp8_configs(name)
            torch.cuda.empty_cache()
    called = host.calls_us() if rows in HOST else {}
    return found | {f"{HOST}{name}": us for name, us in called.items()}


def turn(folder: str, rows: str) -> dict[str, float]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([folder, os.getcwd()]), "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-m", "benchmarks.turns", "--once", rows]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def table(runs: list[list[dict[str, float]]]) -> list[str]:
    """A line for each row that both wheels have in all turns, each a pair of figures by name."""
    both = [name for name in runs[0][0] if all(name in figures for turn in runs for figures in turn)]
    width = max(map(len, both), default=0)
    lines = [f"{'us':{width}} {'before':>10} {'after':>10} {'ratio':>7}"]
    for name in both:
        middle = min if name.startswith(HOST) else statistics.median
        before, after = (middle(turn[side][name] for turn in runs) for side in range(2))
        lines.append(f"{name:{width}} {before:10.2f} {after:10.2f} {before / after:7.3f}")
    return lines


def main() -> None:
    if sys.argv[1:2] == ["--once"]:
        print(json.dumps(once(sys.argv[2])))
        return
    parser = argparse.ArgumentParser(prog="python -m benchmarks.turns", description=__doc__)
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument(
        "--rows", default="", help="part of the rows' names; `host` takes the host times, `fp8` what is else left out"
    )
    arguments = parsed(parser)
    folders = (arguments.before, arguments.after)
    runs = []
    for number in range(arguments.turns):
        order = folders if number % 2 == 0 else folders[::-1]
        made = {folder: turn(folder, arguments.rows) for folder in order}
        runs.append([made[folder] for folder in folders])
    print("\n".join(table(runs)))


if __name__ == "__main__":
    main()
