"""What the cost model chooses for the measured MoE layers, and which of their loads get rows of their own."""

import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from .layers import load_of
from .list_rows import WORTH_A_ROW, key_of
from .ragged_model import RaggedCost, RaggedKey, chosen, ragged_key
from .sweep_ragged import RaggedMeasurement

Outcome = tuple[RaggedMeasurement, RaggedMeasurement]  # the best kernel, and the model's choice


def means(measurements: Iterable[RaggedMeasurement]) -> list[list[RaggedMeasurement]]:
    """For each layer and number of rows the kernels with their geometric mean over the splits.

    The host knows how many rows there are, not how they fall into groups, so a row of the tables is for all splits.
    """
    splits, products = defaultdict(list), defaultdict(list)
    for m in measurements:
        splits[(m.dtype, m.experts, m.rows, m.columns, m.depth), key_of(m)].append(m)
    for (product, _), same in splits.items():
        products[product].append(replace(same[0], us=statistics.geometric_mean(m.us for m in same)))
    return list(products.values())


def outcomes(measurements: Iterable[RaggedMeasurement], costs: dict[RaggedKey, RaggedCost]) -> list[Outcome]:
    """The model chooses among the kernels that it has costs of; the best may be one that it has none of yet."""
    found = []
    for product in means(measurements):
        if known := [m for m in product if ragged_key(m) in costs]:
            found.append((min(product, key=lambda m: m.us), chosen(known, costs)))
    return found


def loss(outcome: Outcome) -> float:
    best, choice = outcome
    return choice.us / best.us - 1


def exact_rows(measurements: Iterable[RaggedMeasurement], costs: dict[RaggedKey, RaggedCost]) -> list[dict]:
    """Rows for the loads on which the model's choice loses more than WORTH_A_ROW to the best."""
    return [
        {
            "dtype": best.dtype, "experts": best.experts, "columns": best.columns, "depth": best.depth,
            "load": load_of(best.rows, best.experts),
            "kernel": best.kernel, "config": str(best.config), "us": round(best.us, 3),
        }
        for best, choice in outcomes(measurements, costs)
        if loss((best, choice)) > WORTH_A_ROW
    ]  # fmt: skip


def summary(measurements: Iterable[RaggedMeasurement], costs: dict[RaggedKey, RaggedCost]) -> str:
    """What the model's choices lose, and where they lose most."""
    found = sorted(outcomes(measurements, costs), key=loss, reverse=True)
    losses = [100 * loss(outcome) for outcome in found]
    mean, most = sum(losses) / max(1, len(losses)), max(losses, default=0)
    rows = sum(percent > 100 * WORTH_A_ROW for percent in losses)
    lines = [f"{len(found)} loads of layers, mean loss {mean:.2f} %, at most {most:.1f} %; rows for {rows} of them"]
    for (best, choice), percent in zip(found[:10], losses):
        lines.append(
            f"{best.experts} experts, {best.rows} rows, N {best.columns}, K {best.depth}: model {choice.config!s}, "
            f"best {best.config!s} {best.us:.1f} us, loss {percent:.1f} %"
        )
    return "\n".join(lines)
