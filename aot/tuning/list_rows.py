"""What the cost model chooses for the measured lists, and which of them get rows of their own in the tables."""

from collections import defaultdict
from collections.abc import Iterable

from ..spec.kernels import KERNELS
from .cost_model import FEWEST, Cost, fit, longest_path
from .measurement import CostKey, ListMeasurement, ListProduct, by_product

WORTH_A_ROW = 0.01  # loss of the model's choice from which what was measured gets a row of its own


def path_of(m: ListMeasurement) -> tuple[int, int]:
    return longest_path(m.product.shapes, m.key.config, m.slots)


def fit_all(measurements: Iterable[ListMeasurement]) -> dict[CostKey, Cost]:
    observations = defaultdict(list)
    for m in measurements:
        observations[m.key].append((*path_of(m), m.us))
    fitted = {key: fit(rows) for key, rows in observations.items() if len(rows) >= FEWEST}
    return {key: cost for key, cost in fitted.items() if cost}


def outcomes(
    measurements: Iterable[ListMeasurement], costs: dict[CostKey, Cost]
) -> list[tuple[ListProduct, list[ListMeasurement], ListMeasurement]]:
    """Each list, its kernels, and what the model takes of those that it has costs of: the least predicted time."""
    found = []
    for product, candidates in by_product(measurements).items():
        if known := [m for m in candidates if m.key in costs]:
            choice = min(known, key=lambda m: costs[m.key].us(*path_of(m)))
            found.append((product, candidates, choice))
    return found


def exact_rows(measurements: list[ListMeasurement], costs: dict[CostKey, Cost]) -> list[dict]:
    """Rows for the lists on which the model's choice loses more than WORTH_A_ROW to the best."""
    rows = []
    for product, candidates, choice in outcomes(measurements, costs):
        aligned = [m for m in candidates if m.key.alignment == 16]  # rows are of aligned kernels
        best = min(aligned, key=lambda m: m.us, default=choice)
        if choice.us > (1 + WORTH_A_ROW) * best.us:
            rows += [
                {
                    "dtype": dtype, "layout": product.layout, "groups": product.groups,
                    "kernel": best.key.kernel, "config": str(best.key.config), "us": round(best.us, 3),
                }
                for dtype in KERNELS[best.key.kernel].dtypes  # measured in fp16: bf16 has as many bits
            ]  # fmt: skip
    return rows


def summary(measurements: list[ListMeasurement], costs: dict[CostKey, Cost]) -> str:
    """A line for each list: the best, the model's choice, its loss; then how often each config was the best."""
    lines, wins = [], defaultdict(int)
    for product, candidates, choice in outcomes(measurements, costs):
        best, shapes = min(candidates, key=lambda m: m.us), product.shapes
        wins[best.key.name] += 1
        name = f"{len(shapes)} x {max(shapes)}" if len(set(shapes)) == 1 else f"{len(shapes)} up to {max(shapes)}"
        lines.append(
            f"{name:28} {product.layout} best {best.us:9.2f} us {best.key.name:28} "
            f"model {choice.key.name:28} loss {100 * (choice.us / best.us - 1):5.1f} %"
        )
    lines += [f"best on {count:3} lists: {config}" for config, count in sorted(wins.items(), key=lambda win: -win[1])]
    return "\n".join(lines)
