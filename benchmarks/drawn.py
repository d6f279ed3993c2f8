"""`python -m benchmarks.drawn [--seed N] [--count N] [kind ...]`: products of MoE layers drawn at random, beside peers.

Nobody has tuned for them. A line each: ours in µs, rested | hot; how many times as long the best peer takes, then each
peer. Kinds: "nk" and "kn", bf16 with weights as [E, N, K] and [E, K, N]; "e4m3" with scales of blocks; "gradient", of
weights, in bf16. "best embedded" is the best of our kernels if another was chosen; a line before names the two.
"""

import argparse
import functools
import gc
import random
from collections.abc import Callable, Mapping

import torch

import gg_runtime

from . import cublas, forms, fp8_calls, fp8_scales
from .arguments import parsed
from .measured import rested_and_hot, right
from .moe import prepare
from .moe_peers import CUBLAS_GROUPED, CUBLAS_LOOP, TORCH, RaggedPeer, allocating, in_place, peers
from .moe_workload import Launch, RaggedCopy, RaggedWorkload
from .peers import OURS, reason
from .shapes import RaggedShape, split
from .timing import Timed, interleaved_us
from .unseen import forced, log_uniform, near_best
from .workload import Copy

EXPERTS = (4, 8, 16, 32, 64, 96, 128, 160, 256)
ROWS_EACH = (2, 6000)
SIZES = (512, 14336)  # of N and K
STEPS = (64, 128, 256)  # that N and K are multiples of
SPLITS = ("multinomial", "zipf", "within 30 %", "half-empty", "uniform")
MOST_ROWS, LARGEST_FLOP = 65536, 2.5e12
MOST_WEIGHTS, MOST_GRADIENTS, MOST_OF_ROWS = 3e9, 1e9, 1.5e9  # elements; gradients are checked in float32
REPEATS = 3
BEST = "best embedded"

Times = dict[str, float]


def draw(numbers: random.Random, dtype: str = "bf16", most_weights: float = MOST_WEIGHTS) -> RaggedShape:
    while True:
        experts, how, step = numbers.choice(EXPERTS), numbers.choice(SPLITS), numbers.choice(STEPS)
        rows = round(experts * log_uniform(numbers, *ROWS_EACH))
        step = step if dtype == "bf16" else 128
        columns, depth = (max(step, round(log_uniform(numbers, *SIZES) / step) * step) for _ in range(2))
        shape = RaggedShape(how, split(how, experts, rows, seed=numbers.randrange(1000)), columns, depth, dtype)
        fits = experts * columns * depth <= most_weights and rows * (columns + depth) <= MOST_OF_ROWS
        if fits and rows <= MOST_ROWS and shape.flop <= LARGEST_FLOP:
            return shape


def timed(graphs: Mapping[str, Timed]) -> tuple[Times, Times]:
    times = rested_and_hot(graphs, REPEATS)
    return times["us"], times["hot_us"]


def told(failed: Mapping[str, str]) -> None:
    for name, why in failed.items():
        print(f"  {name}: {why}", flush=True)


def right_graphs(makers: Mapping[str, Callable[[], tuple[Timed, float]]]) -> dict[str, Timed]:
    graphs, row = right(makers)
    told(row["failed"])
    return graphs


def graphs_of(workload: RaggedWorkload, everyone: list[RaggedPeer]) -> dict[str, Timed]:
    return right_graphs({peer.name: functools.partial(prepare, peer, workload) for peer in everyone})


def beside_embedded(workload: RaggedWorkload, everyone: list[RaggedPeer], force: Callable[..., Launch], seen) -> dict:
    """The peers' graphs, and that of our fastest kernel if another was chosen."""
    others = [one["variant"] for one in seen.candidates if not one["ruled_out"] and one["variant"] != seen.variant]
    found = graphs_of(workload, everyone)
    own = graphs_of(workload, [RaggedPeer(name, functools.partial(force, variant=name)) for name in others])
    return found | best_of(own, found[OURS], seen.variant)


def best_of(own: Mapping[str, Timed], chosen: Timed, name: str) -> dict[str, Timed]:
    """The fastest, rested, of our kernels that were not chosen, if it is faster than what was: `name`."""
    near = near_best({OURS: chosen, **own}, {OURS})
    us = dict(zip(near, interleaved_us([own.get(one, chosen) for one in near], REPEATS)))
    best = min(us, key=lambda one: us[one])
    if best == OURS:
        return {}
    print(f"  chosen: {name}; the best: {best}", flush=True)
    return {BEST: own[best]}


def of_nk(numbers: random.Random) -> tuple[RaggedShape, Times, Times]:
    shape = draw(numbers)
    workload = RaggedWorkload(shape)
    copy = workload.copies[0]
    seen = gg_runtime.explain(copy.A, copy.B, out=copy.C, offs=copy.offs)
    return shape, *timed(beside_embedded(workload, peers(shape, tuned=False), forced, seen))


def of_kn(numbers: random.Random) -> tuple[RaggedShape, Times, Times]:
    shape = draw(numbers)
    workload = RaggedWorkload(shape)
    weights = {id(copy): copy.B.contiguous() for copy in workload.copies}

    def ours(copy: RaggedCopy) -> Launch:
        return in_place(lambda: gg_runtime.grouped_mm(copy.A, weights[id(copy)], offs=copy.offs, out=copy.C), copy)

    def torch_grouped(copy: RaggedCopy) -> Launch:
        multiply = torch.nn.functional.grouped_mm
        return allocating(functools.partial(multiply, copy.A, weights[id(copy)], offs=copy.offs))

    def loop(copy: RaggedCopy) -> Launch:
        parts = zip(copy.A.split(shape.group_rows), weights[id(copy)], copy.C.split(shape.group_rows))
        triples = [(a, b, c) for a, b, c in parts if len(a)]

        def call() -> None:
            for a, b, c in triples:
                torch.mm(a, b, out=c)

        return in_place(call, copy)

    def force(copy: RaggedCopy, variant: str) -> Launch:
        options = {"offs": copy.offs, "out": copy.C, "variant": variant}
        return in_place(functools.partial(gg_runtime._C.grouped_mm, copy.A, weights[id(copy)], **options), copy)

    copy = workload.copies[0]
    seen = gg_runtime.explain(copy.A, weights[id(copy)], out=copy.C, offs=copy.offs)

    def grouped(copy: RaggedCopy) -> Launch:
        used = [group for group, rows in enumerate(shape.group_rows) if rows]
        products = copy.products
        return in_place(
            cublas.grouped(Copy(products.A, {"nn": [weights[id(copy)][g] for g in used]}, products.C), "nn"), copy
        )

    everyone = [
        RaggedPeer(OURS, ours), RaggedPeer(CUBLAS_LOOP, loop), RaggedPeer(CUBLAS_GROUPED, grouped),
        RaggedPeer(TORCH, torch_grouped),
    ]  # fmt: skip
    return shape, *timed(beside_embedded(workload, everyone, force, seen))


def of_e4m3(numbers: random.Random) -> tuple[RaggedShape, Times, Times]:
    """With scales of blocks; torch has none."""
    shape = draw(numbers, "e4m3")
    product = fp8_calls.Product(shape)
    wanted = {fp8_calls.BLOCK: OURS, fp8_calls.CONTIGUOUS: fp8_calls.CONTIGUOUS, fp8_calls.MASKED: fp8_calls.MASKED}
    makers = {
        wanted[peer]: functools.partial(fp8_scales.graph_of, product, peer, bind)
        for peer, bind in fp8_calls.peers(product, quick=True).items()
        if peer in wanted
    }
    found, of_config = right_graphs(makers), fp8_scales.config_graphs(product, fp8_calls.BLOCK)
    c, (of_a, of_b) = product.copies[0], product.scales.block
    plan = gg_runtime.Plan(c.A, c.B, offs=c.offs, out=c.C, scale_a=of_a, scale_b=of_b)
    chosen = fp8_scales.config(plan.variant)
    others = {name: graph for name, graph in of_config.items() if name != chosen}
    return shape, *timed(found | best_of(others, found[OURS], chosen))


def of_gradient(numbers: random.Random) -> tuple[RaggedShape, Times, Times]:
    shape = draw(numbers, most_weights=MOST_GRADIENTS)
    found = forms.gradient(shape.group_rows, shape.depth, shape.columns)
    told(found["failed"])
    names = {forms.OURS: OURS, forms.TORCH: TORCH, forms.LOOP: CUBLAS_LOOP}
    us, hot = (
        {names[name]: times[name] for name in names if name in times} for times in (found["us"], found["hot_us"])
    )
    return shape, us, hot


KINDS = {"nk": of_nk, "kn": of_kn, "e4m3": of_e4m3, "gradient": of_gradient}


def line(kind: str, shape: RaggedShape, us: Times, hot: Times) -> str:
    def ratios(name: str) -> str:
        return f"{us[name] / us[OURS]:.3f} | {hot[name] / hot[OURS]:.3f}"

    others = [name for name in us if name not in (OURS, BEST)]
    best = min(others, key=lambda name: us[name], default=None)
    sizes = f"{shape.experts} x {shape.rows} {shape.kind}, N {shape.columns}, K {shape.depth}"
    of_best = f"x {ratios(best)}" if best else "no peer"
    cells = "; ".join(f"{name} {ratios(name)}" for name in us if name != OURS)
    return f"{kind:8} {sizes:50} {us[OURS]:7.1f} | {hot[OURS]:7.1f} us  {of_best}  ({cells})"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.drawn", description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="kind", help=f"of {', '.join(KINDS)}; all by default")
    parser.add_argument("--seed", type=int, default=0, help="other products for each")
    parser.add_argument("--count", type=int, default=10, help="products of each kind")
    given = parsed(parser)
    if unknown := set(given.kinds) - KINDS.keys():
        parser.error(f"no such kind: {', '.join(sorted(unknown))}; there are {', '.join(KINDS)}")
    print(f"{torch.cuda.get_device_name()}, gg_runtime {gg_runtime.__version__}, torch {torch.__version__}")
    numbers = random.Random(given.seed)
    for _ in range(given.count):
        for kind in given.kinds or KINDS:
            try:
                print(line(kind, *KINDS[kind](numbers)), flush=True)
            except Exception as error:  # one that is wrong is a result; the others still count
                print(f"{kind}: {reason(error)}", flush=True)
            gc.collect()
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
