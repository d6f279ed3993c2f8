"""What a config costs that nobody measured yet, or too little: that of a relative, times a factor."""

import math
from collections.abc import Iterable
from dataclasses import fields
from typing import NamedTuple

from ..spec.kernels import KERNELS
from ..spec.tables import COSTS
from ..spec.variants import ELEMENT_BYTES, Config
from .measurement import CostKey, Measurement, Product, geometric_mean

Figures = dict[str, float]  # some of COSTS


class Estimate(NamedTuple):
    """Figures, the relative that they are of, and the factor."""

    figures: Figures
    like: CostKey
    factor: float


def estimated_cost(
    wanted: CostKey, costs: dict[CostKey, Figures], times: dict[Product, dict[CostKey, float]]
) -> Estimate | None:
    """The figures of the nearest relative, times a factor fitted on what both have measured; None without a relative.

    Relatives are the configs with costs of the same family: of kernels that reach matrices alike, by pointers or by
    descriptors, with the same alignment. The nearest differs least: a side of the tile or the bytes of a step that are
    twice as much count 1, another form 2, as lists have no rate of streaming, scales of another kind 2, inputs of
    another width 3, as sums of e4m3 are promoted, and each other difference of the config, the kernel or the outputs
    1/2.

    The factor is the geometric mean of how many times as long the wanted config took as its relative, over all products
    that were timed on both. Where there are none, it is that of the two kernels, over all products and configs that
    were timed on both; and 1 where there are none of these either. Times grow by it, the rate of streaming shrinks.

    `times`: microseconds of each product, whatever its dtype.
    """
    relatives = [key for key in costs if _family(key) == _family(wanted) and key != wanted]
    if not relatives:
        return None
    like = min(relatives, key=lambda key: (distance(wanted, key), key.name))
    factor = _ratio((wanted, like, shared) for shared in times.values())
    if factor is None:
        configs = {key.config for shared in times.values() for key in shared}
        pairs = [(wanted._replace(config=config), like._replace(config=config)) for config in configs]
        factor = _ratio((*pair, shared) for shared in times.values() for pair in pairs if pair[0] != pair[1])
    factor = 1.0 if factor is None else factor
    scaled = {name: us / factor if name == "stream_gb_s" else us * factor for name, us in costs[like].items()}
    return Estimate({name: float(f"{us:.4g}") for name, us in scaled.items()}, like, factor)


def distance(one: CostKey, other: CostKey) -> float:
    """How unlike two configs of a family are, as `estimated_cost` counts it."""
    doublings = sum(abs(math.log2(a / b)) for a, b in zip(_sizes(one), _sizes(other)))
    rest = [field.name for field in fields(Config) if not field.name.startswith("block_")]
    differences = sum(getattr(one.config, name) != getattr(other.config, name) for name in rest)
    ours, theirs = KERNELS[one.kernel], KERNELS[other.kernel]
    kinds = (ours.form != theirs.form) + (ours.scales != theirs.scales)
    differences += (one.kernel != other.kernel) + (one.out != other.out)
    return doublings + 2 * kinds + 3 * (one.fp8 != other.fp8) + differences / 2


def times_of(measurements: Iterable[Measurement[Product]]) -> dict[Product, dict[CostKey, float]]:
    """As `estimated_cost` takes them: a grouped product in e4m3 is the same as that in bf16."""
    found: dict[Product, dict[CostKey, float]] = {}
    for m in measurements:
        product = m.product
        if getattr(product, "dtype", "bf16") != "bf16":
            product = type(product)("bf16", *product.to_json()[1:])
        found.setdefault(product, {})[m.key] = m.us
    return found


def figures_of(row: dict) -> Figures:
    return {name: row[name] for name in COSTS if name in row}


def _family(key: CostKey) -> tuple[str, int]:
    return KERNELS[key.kernel].addressing, key.alignment


def _sizes(key: CostKey) -> tuple[int, int, int]:
    element = ELEMENT_BYTES["e4m3" if key.fp8 else "bf16"]
    return key.config.block_m, key.config.block_n, element * key.config.block_k


def _ratio(timed: Iterable[tuple[CostKey, CostKey, dict[CostKey, float]]]) -> float | None:
    """Geometric mean of the first one's time by the other's, where both were timed."""
    ratios = [shared[one] / shared[other] for one, other, shared in timed if one in shared and other in shared]
    return geometric_mean(ratios) if ratios else None
