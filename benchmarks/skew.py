"""Few experts of some hundred rows each, skewed loads: our choice, the best kernel embedded, and a cuBLAS loop.

`python -m benchmarks.skew` prints a row for each product, µs rested and hot; `--configs` each kernel's time; `--splits`
what the choice, which sees no split, loses on each of three splits of a product, rested.
"""

import argparse
import functools
import math

import torch

import gg_runtime

from .arguments import parsed
from .moe import prepare
from .moe_peers import CUBLAS_LOOP, RaggedPeer, cublas_loop
from .moe_workload import RaggedWorkload
from .shapes import RaggedShape, split
from .timing import interleaved_hot_us, interleaved_us
from .unseen import forced, near_best

# (experts, rows of all, N, K, how rows are split). No table has them.
PRODUCTS = (
    (8, 5000, 6528, 6144, "uniform"),
    (8, 5000, 6528, 6144, "multinomial"),
    (16, 4800, 4992, 4352, "multinomial"),
    (16, 6400, 7168, 4096, "zipf"),
    (16, 4800, 4992, 8192, "zipf"),
    (8, 2600, 8192, 12288, "multinomial"),
    (12, 5000, 5120, 5120, "zipf"),
    (8, 12000, 4096, 14336, "multinomial"),
    (10, 3000, 10240, 4096, "multinomial"),
    (8, 3200, 14336, 4096, "zipf"),
    (16, 8000, 4096, 16384, "multinomial"),
)


SPLITS = ("uniform", "multinomial", "zipf")


def measure(shape: RaggedShape, ways=(interleaved_us, interleaved_hot_us)) -> tuple[str, list[dict[str, float]]]:
    """The kernel chosen; and µs of each graph that comes near the best, in each way of timing."""
    workload = RaggedWorkload(shape)
    copy = workload.copies[0]
    told = gg_runtime.explain(copy.A, copy.B, out=copy.C, offs=copy.offs)
    choice = str(told.variant)
    usable = [candidate["variant"] for candidate in told.candidates if not candidate["ruled_out"]]
    peers = [RaggedPeer(name, functools.partial(forced, variant=name)) for name in usable]
    graphs = {peer.name: prepare(peer, workload)[0] for peer in [*peers, RaggedPeer(CUBLAS_LOOP, cublas_loop)]}
    near = near_best(graphs, {choice, CUBLAS_LOOP})
    timed = [graphs[name] for name in near]
    return choice, [dict(zip(near, times(timed))) for times in ways]


def best_of(us: dict[str, float]) -> float:
    return min(us[name] for name in us if name != CUBLAS_LOOP)


def print_losses() -> None:
    """What the choice loses to the best embedded kernel, in %: by split, and by geometric mean over the splits."""
    print("", "product", *SPLITS, "all", "choice", "", sep=" | ")
    for experts, rows, columns, depth in dict.fromkeys(product[:4] for product in PRODUCTS):
        ratios, choice = [], ""
        for how in SPLITS:
            shape = RaggedShape(how, split(how, experts, rows, seed=2), columns, depth)
            choice, (us,) = measure(shape, (interleaved_us,))
            ratios.append(us[choice] / best_of(us))
            torch.cuda.empty_cache()
        cells = [f"{100 * (ratio - 1):.1f}" for ratio in [*ratios, math.prod(ratios) ** (1 / len(ratios))]]
        print("", f"{experts} x {rows}, {columns} x {depth}", *cells, choice, "", sep=" | ", flush=True)


def cells(us: dict[str, float], choice: str) -> list[str]:
    """µs of the choice, the best of ours and the loop, and how many times as fast as the loop the first two are."""
    best, loop = best_of(us), us[CUBLAS_LOOP]
    return [f"{us[choice]:.0f}", f"{best:.0f}", f"{loop:.0f}", f"{loop / us[choice]:.3f}", f"{loop / best:.3f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--configs", action="store_true", help="each kernel's time besides")
    parser.add_argument("--splits", action="store_true", help="what the choice loses on three splits instead")
    options = parsed(parser)
    if options.splits:
        return print_losses()
    told = ("choice", "best of ours", "loop", "loop / choice", "loop / best")
    print("", "product", *told, *(f"{name}, hot" for name in told), "choice", "", sep=" | ")
    for experts, rows, columns, depth, how in PRODUCTS:
        shape = RaggedShape(how, split(how, experts, rows, seed=1), columns, depth)
        choice, (rested, hot) = measure(shape)
        product = f"{experts} x {rows}, {columns} x {depth}, {how}"
        print("", product, *cells(rested, choice), *cells(hot, choice), choice, "", sep=" | ", flush=True)
        for name in rested if options.configs else ():
            print(f"    {name}: {rested[name]:.1f}, {hot[name]:.1f}", flush=True)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
