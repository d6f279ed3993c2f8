"""How rows fall into groups: the distributions that grouped products are measured with."""

import functools
import random
from collections import Counter
from collections.abc import Callable
from itertools import accumulate, pairwise


def by_shares(rows: int, shares: list[float]) -> list[int]:
    ends = [round(rows * end / sum(shares)) for end in accumulate(shares, initial=0)]
    return [end - start for start, end in pairwise(ends)]


def by_draws(rows: int, weights: list[float], numbers: random.Random) -> list[int]:
    counts = Counter(numbers.choices(range(len(weights)), weights, k=rows))
    return [counts[group] for group in range(len(weights))]


def zipf(groups: int, rows: int, numbers: random.Random) -> list[int]:
    weights = [1 / rank for rank in range(1, groups + 1)]
    numbers.shuffle(weights)
    return by_draws(rows, weights, numbers)


def half_empty(groups: int, rows: int, numbers: random.Random) -> list[int]:
    used = set(numbers.sample(range(groups), -(-groups // 2)))
    return by_shares(rows, [float(group in used) for group in range(groups)])


SPLITS: dict[str, Callable[[int, int, random.Random], list[int]]] = {
    "uniform": lambda groups, rows, _: by_shares(rows, [1.0] * groups),
    "multinomial": lambda groups, rows, numbers: by_draws(rows, [1.0] * groups, numbers),
    "zipf": zipf,
    "half-empty": half_empty,
}


@functools.cache
def group_rows(how: str, groups: int, rows: int) -> tuple[int, ...]:
    """Rows of each group, the same for the same arguments."""
    return tuple(SPLITS[how](groups, rows, random.Random(rows)))
