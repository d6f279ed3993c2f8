"""Where the time of a whole layer goes, by the profiler: the kernels of one replay, sorted into parts."""

import re

import torch

from .timing import Graph

PARTS: tuple[str, ...] = ("routing", "gather", "up", "activation", "down", "combine")
PRODUCT = re.compile(r"hopper|basic|device_kernel|GemmUniversal|triton_tem|nvjet|cublas|gemm(?!_data)")
OURS = {"route": "routing", "gather": "gather", "activate": "activation", "combine": "combine"}  # by a name's beginning


def kernels(graph: Graph) -> list[tuple[str, float]]:
    """(name, µs) of what one replay runs on the GPU, in its order."""
    graph.run()
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        graph.run()
        torch.cuda.synchronize()
    events = [e for e in profile.events() or () if e.device_type.name == "CUDA"]
    events.sort(key=lambda e: e.time_range.start)
    return [(e.name, e.time_range.elapsed_us()) for e in events]


def sorted_into_parts(launched: list[tuple[str, float]]) -> dict[str, float]:
    """µs of each part of one layer. Products and our kernels are known by name, what torch compiled by its place.

    The last kernel before the first product gathers, the others there route. Those between the products activate, those
    behind them combine.

    Raises:
        ArithmeticError: there are not two products.
    """
    products = [place for place, (name, _) in enumerate(launched) if PRODUCT.search(name)]
    if len(products) < 2:
        raise ArithmeticError(f"{len(products)} products among {[name[:60] for name, _ in launched]}")
    first, last = products[0], products[-1]
    before = [place for place in range(first) if "prepare" not in launched[place][0]]
    found = dict.fromkeys(PARTS, 0.0)
    for place, (name, us) in enumerate(launched):
        known = [part for start, part in OURS.items() if name.startswith(start)]
        if known:
            part = known[0]
        elif place <= first:
            part = "up" if place not in before else "gather" if place == before[-1] else "routing"
        elif place < last:
            part = "down" if "prepare" in name else "activation"
        else:
            part = "down" if place == last else "combine"
        found[part] += us
    return found


def parts_us(graph: Graph) -> dict[str, float]:
    """Mean µs of each part over the layers that a graph launches."""
    launched = kernels(graph)
    each, rest = divmod(len(launched), graph.launches)
    if rest or not each:
        raise ArithmeticError(f"{len(launched)} kernels in {graph.launches} layers")
    layers = [sorted_into_parts(launched[start : start + each]) for start in range(0, len(launched), each)]
    return {part: sum(layer[part] for layer in layers) / len(layers) for part in PARTS}
