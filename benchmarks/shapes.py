"""The lists that are timed: name -> [(M, N, K), ...]."""

import random

Shape = tuple[int, int, int]


def squares(size: int, groups: int = 4) -> list[Shape]:
    return [(size, size, size)] * groups


def ragged(groups: int, largest: int, seed: int) -> list[Shape]:
    """Sizes drawn from the multiples of 64 up to `largest`."""
    numbers = random.Random(seed)
    return [tuple(64 * numbers.randint(1, largest // 64) for _ in range(3)) for _ in range(groups)]


LISTS: dict[str, list[Shape]] = {
    **{f"4 x {n}^3": squares(n) for n in (128, 256, 512, 1024)},
    "1024^3 .. 128^3": [(n, n, n) for n in (1024, 512, 256, 128)],
    **{f"4 x ({m}, 8192, 8192)": [(m, 8192, 8192)] * 4 for m in (128, 256, 512, 1024, 2048)},
    "64 ragged to 2048": ragged(64, 2048, seed=0),
    "256 ragged to 512": ragged(256, 512, seed=1),
}
