"""`python -m benchmarks.turns BEFORE AFTER`: two wheels' kernels and host times, in turns of processes of their own.

BEFORE and AFTER are folders that wheels were installed into (`pip install --target`). The ratio is before / after:
above 1, the second wheel is faster. A figure is the median of the turns; host times are the least, as neighbours on the
host only ever add to them.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys

import torch

from . import host, lists, moe, moe_peers
from .moe_workload import RaggedWorkload
from .peers import OURS, peers
from .shapes import LISTS, MOE
from .timing import Graph
from .workload import Workload

HOST = "host: "


def list_graphs(workload: Workload) -> dict[str, Graph]:
    (ours,) = (peer for peer in peers() if peer.name == OURS)
    return {layout: lists.prepare(ours, layout, workload)[0] for layout in ours.layouts}


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
    called = host.calls_us() if rows in HOST else {}
    return found | {f"{HOST}{name}": us for name, us in called.items()}


def turn(folder: str, rows: str) -> dict[str, float]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([folder, os.getcwd()]), "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-m", "benchmarks.turns", "--once", rows]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    if sys.argv[1:2] == ["--once"]:
        print(json.dumps(once(sys.argv[2])))
        return
    parser = argparse.ArgumentParser(prog="python -m benchmarks.turns", description=__doc__)
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--rows", default="", help="part of the rows' names; `host` takes the host times")
    arguments = parser.parse_args()
    folders = (arguments.before, arguments.after)
    runs = [[turn(folder, arguments.rows) for folder in folders] for _ in range(arguments.turns)]
    print(f"{'us':38} {'before':>10} {'after':>10} {'ratio':>7}")
    for name in runs[0][0]:
        middle = min if name.startswith(HOST) else statistics.median
        before, after = (middle(run[side][name] for run in runs) for side in range(2))
        print(f"{name:38} {before:10.2f} {after:10.2f} {before / after:7.3f}")


if __name__ == "__main__":
    main()
