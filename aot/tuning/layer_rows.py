"""What the cost model chooses for the measured MoE layers, and which of their loads get rows of their own."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from ..spec.tables import PLAIN
from .layers import load_of, rows_at
from .list_rows import WORTH_A_ROW
from .measurement import CostKey, GroupedMeasurement, GroupedProduct, geometric_mean
from .ragged_model import RaggedCost, chosen

Outcome = tuple[GroupedMeasurement, GroupedMeasurement]  # the best kernel, and the model's choice


def means(measurements: Iterable[GroupedMeasurement]) -> list[list[GroupedMeasurement]]:
    """For each layer and number of rows the kernels with their geometric mean over the splits.

    The host knows how many rows there are, not how they fall into groups, so a row of the tables is for all splits.
    """
    splits, products = defaultdict(list), defaultdict(list)
    for m in measurements:
        splits[m.product.layer, m.key].append(m)
    for (layer, _), same in splits.items():
        products[layer].append(replace(same[0], us=geometric_mean(m.us for m in same)))
    return list(products.values())


def outcomes(measurements: Iterable[GroupedMeasurement], costs: dict[CostKey, RaggedCost]) -> list[Outcome]:
    """The model chooses among the kernels that it has costs of; the best may be one that it has none of yet."""
    found = []
    for product in means(measurements):
        if known := [m for m in product if m.key in costs]:
            found.append((min(product, key=lambda m: m.us), chosen(known, costs)))
    return found


def loss(outcome: Outcome) -> float:
    best, choice = outcome
    return choice.us / best.us - 1


def exact_rows(measurements: Iterable[GroupedMeasurement], costs: dict[CostKey, RaggedCost]) -> list[dict]:
    """Rows for the loads on which the model's choice loses more than WORTH_A_ROW to the best; and for those of whose
    kernels it has no costs of this GPU, and answers with those of another.

    A load is of several numbers of rows: that nearest to rows_at speaks for it.
    """
    of_load = {tuple(facts_of(same[0].product).items()): same for same in sorted(means(measurements), key=_far_first)}
    rows = []
    for product in of_load.values():
        best, known = min(product, key=lambda m: m.us), [m for m in product if m.key in costs]
        if not known or loss((best, chosen(known, costs))) > WORTH_A_ROW:
            rows.append(_row(best))
    return rows


def _far_first(same: list[GroupedMeasurement]) -> int:
    p = same[0].product
    return -abs(p.rows - rows_at(load_of(p.rows, p.experts), p.experts))


def _row(best: GroupedMeasurement) -> dict:
    measured = {"kernel": best.key.kernel, "config": str(best.key.config), "us": round(best.us, 3)}
    return facts_of(best.product) | measured


def facts_of(p: GroupedProduct) -> dict:
    """What a row says of the product that it was measured on."""
    does = {"epilogue": p.epilogue, "source": p.source}
    return {
        "dtype": p.dtype, "experts": p.experts, "columns": p.columns, "depth": p.depth,
        "load": load_of(p.rows, p.experts), **(does if does != PLAIN else {}),
    }  # fmt: skip


def summary(measurements: Iterable[GroupedMeasurement], costs: dict[CostKey, RaggedCost]) -> str:
    """What the model's choices lose, and where they lose most."""
    found = sorted(outcomes(measurements, costs), key=loss, reverse=True)
    losses = [100 * loss(outcome) for outcome in found]
    mean, most = sum(losses) / max(1, len(losses)), max(losses, default=0)
    rows = sum(percent > 100 * WORTH_A_ROW for percent in losses)
    lines = [f"{len(found)} loads of layers, mean loss {mean:.2f} %, at most {most:.1f} %; rows for {rows} of them"]
    for (best, choice), percent in zip(found[:10], losses):
        p = best.product
        lines.append(
            f"{p.experts} experts, {p.rows} rows, N {p.columns}, K {p.depth}: model {choice.key.config!s}, "
            f"best {best.key.config!s} {best.us:.1f} us, loss {percent:.1f} %"
        )
    return "\n".join(lines)
