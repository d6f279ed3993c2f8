"""Which configs the tables can do without."""

from collections import defaultdict
from collections.abc import Callable

from ..spec.variants import is_swapped
from .list_rows import Key, by_list, key_of
from .measurements import Measurements

WORTH_A_CONFIG = 0.01  # loss somewhere from which a config is kept


def dispensable(times: list[list], keys: Callable) -> set:
    """Configs without which the best of the rest loses at most WORTH_A_CONFIG anywhere, the rarest winners first.

    `times`: the measurements of each product. A kernel keeps one config at the least.
    """
    left, wins = {keys(m) for product in times for m in product}, defaultdict(int)
    for product in times:
        wins[keys(min(product, key=lambda m: m.us))] += 1
    for key in sorted(left, key=lambda key: (wins[key], str(key))):
        rest = left - {key}
        losses = (
            min((m.us for m in product if keys(m) in rest), default=float("inf")) / min(m.us for m in product)
            for product in times
        )
        if max(losses) <= 1 + WORTH_A_CONFIG and any(other[:2] == key[:2] for other in rest):
            left = rest
    return {keys(m) for product in times for m in product} - left


def dispensable_kernels(found: Measurements) -> set[Key]:
    """Of the lists' kernels and of the ragged ones.

    Lists are measured with A row-major. What takes an A with rows contiguous besides is weighed without what does not:
    boxes of TMA are too wide for few rows.
    """
    aligned = [[m for m in candidates if m.alignment == 16] for candidates in by_list(found.lists).values()]
    products = defaultdict(list)
    for m in found.ragged + found.layers:
        products[m.shape].append(m)
    lists = [candidates for candidates in aligned if candidates]
    any_layout = [[m for m in candidates if not is_swapped(m.kernel, m.config)] for candidates in lists]
    swapped = {key for key in dispensable(lists, key_of) if is_swapped(key[0], key[2])}
    return dispensable(any_layout, key_of) | swapped | dispensable(list(products.values()), key_of)
