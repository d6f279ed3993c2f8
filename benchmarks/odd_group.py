"""`python -m benchmarks.odd_group`: 64 groups, one of which TMA cannot read; two launches beside one."""

import argparse

import torch

import gg_runtime

from .arguments import parsed
from .shapes import Shape
from .timing import Call, Graph, eager_us, host_us, interleaved_us
from .workload import Copy, Workload

GROUPS, ODD = 64, 17
SIZES = (128, 256, 512, 1024, 2048)
SINGLE_KERNELS = 4  # of those that the model finds fastest for the whole list


def lists() -> dict[str, list[Shape]]:
    found = {}
    for size in SIZES:
        for name, odd in {"N = 7": (size, 7, size), "K = 0": (size, size, 0)}.items():
            found[f"{GROUPS} x {size}^3, one with {name}"] = [
                odd if group == ODD else (size, size, size) for group in range(GROUPS)
            ]
    return found


def plan(copy: Copy, variant: str | None) -> gg_runtime.Plan:
    return gg_runtime.Plan(copy.A, copy.B["nn"], out=copy.C, variant=variant)


def checked(workload: Workload, calls: list[Call]) -> Graph:
    graph = Graph(calls)
    workload.poison()
    graph.run()
    workload.check()
    return graph


def measure(shapes: list[Shape]) -> dict:
    """Microseconds of a launch under a graph, by the library's choice and by the best of SINGLE_KERNELS; of a call of
    group_gemm eagerly and on the host."""
    workload = Workload(shapes, layouts=("nn",))
    first = workload.copies[0]
    seen = gg_runtime.explain(first.A, first.B["nn"], out=first.C)
    usable = [candidate["variant"] for candidate in seen.candidates if candidate["ruled_out"] is None]
    graphs, chosen = [], ""
    for variant in [None, *usable[:SINGLE_KERNELS]]:
        plans = [plan(copy, variant) for copy in workload.copies]
        graphs.append(checked(workload, [one.run for one in plans]))
        if variant is None:
            chosen = f"{plans[0].launches} launch(es), {plans[0].variant}"
    times = interleaved_us(graphs)
    calls = [lambda copy=copy: gg_runtime.group_gemm(copy.A, copy.B["nn"], out=copy.C) for copy in workload.copies]
    return {
        "chosen": chosen,
        "chosen_us": times[0],
        "single": usable[times[1:].index(min(times[1:]))],
        "single_us": min(times[1:]),
        "speedup": min(times[1:]) / times[0],
        "call_us": eager_us(calls),
        "call_host_us": host_us(calls[0], calls=10),
        "reason": seen.reason,
    }


def main() -> None:
    parsed(argparse.ArgumentParser(prog="python -m benchmarks.odd_group", description=__doc__))
    for name, shapes in lists().items():
        row = measure(shapes)
        print(
            f"{name}: {row['chosen_us']:.1f} us by {row['chosen']}; {row['single_us']:.1f} us by {row['single']}; "
            f"{row['speedup']:.2f} x; a call {row['call_us']:.1f} us, {row['call_host_us']:.1f} us on the host"
        )
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
