"""Which configs the tables can do without."""

from collections import defaultdict

from ..spec.variants import is_swapped
from .measurement import CostKey, ListProduct, Measurement, Product, by_product

WORTH_A_CONFIG = 0.01  # loss somewhere from which a config is kept


def dispensable(times: list[list[Measurement[Product]]]) -> set[CostKey]:
    """Configs without which the best of the rest loses at most WORTH_A_CONFIG anywhere, the rarest winners first.

    `times`: the measurements of each product. A kernel keeps one config at the least.
    """
    left, wins = {m.key for product in times for m in product}, defaultdict(int)
    for product in times:
        wins[min(product, key=lambda m: m.us).key] += 1
    for key in sorted(left, key=lambda key: (wins[key], str(key))):
        rest = left - {key}
        losses = (
            min((m.us for m in product if m.key in rest), default=float("inf")) / min(m.us for m in product)
            for product in times
        )
        if max(losses) <= 1 + WORTH_A_CONFIG and any(other[:3] == key[:3] for other in rest):
            left = rest
    return {m.key for product in times for m in product} - left


def dispensable_kernels(measurements: list[Measurement[Product]]) -> set[CostKey]:
    """Of the lists' kernels and of the grouped ones.

    Lists are measured with A row-major. What takes an A with rows contiguous besides is weighed without what does not:
    boxes of TMA are too wide for few rows.
    """
    products = by_product(m for m in measurements if m.key.alignment == 16)
    lists = [candidates for product, candidates in products.items() if isinstance(product, ListProduct)]
    grouped = [candidates for product, candidates in products.items() if not isinstance(product, ListProduct)]
    any_layout = [[m for m in candidates if not is_swapped(m.key.kernel, m.key.config)] for candidates in lists]
    swapped = {key for key in dispensable(lists) if is_swapped(key.kernel, key.config)}
    return dispensable([candidates for candidates in any_layout if candidates]) | swapped | dispensable(grouped)
