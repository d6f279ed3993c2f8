"""The time of a list on a config: what csrc/select/cost.cpp predicts, and how measurements give its three figures."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy
from scipy.optimize import nnls

from ..spec.variants import Config

FEWEST = 3  # measurements that costs can be fitted to
LEAST_US = 1e-6  # of a fitted figure: less is rounding


@dataclass(frozen=True)
class Cost:
    """Microseconds of a launch, of an output tile, and of a step of block_k in it."""

    launch_us: float
    tile_us: float
    step_us: float

    def us(self, tiles: int, steps: int) -> float:
        return self.launch_us + tiles * self.tile_us + steps * self.step_us


def longest_path(shapes: Sequence[tuple[int, int, int]], config: Config, slots: int) -> tuple[int, int]:
    """Output tiles and K steps of CTA 0, which has the most work: tiles 0, slots, 2 * slots, ... by falling K."""
    tiles = steps = following = end = 0
    for m, n, k in sorted(shapes, key=lambda shape: -shape[2]):
        end += -(-m // config.block_m) * -(-n // config.block_n)
        turns = max(0, -(-(end - following) // slots))
        tiles += turns
        steps += turns * -(-k // config.block_k)
        following += turns * slots
    return tiles, steps


def fit(observations: Sequence[tuple[int, int, float]]) -> Cost | None:
    """The non-negative Cost with the least squared relative error over (tiles, steps, microseconds).

    None where no step has a time of its own: 0 means "never measured" to the selector.
    """
    tiles, steps, us = numpy.array(observations, dtype=float).T
    relative = numpy.stack([numpy.ones_like(us), tiles, steps], axis=1) / us[:, None]
    figures, _ = nnls(relative, numpy.ones_like(us))
    cost = Cost(*(float(f"{figure:.4g}") if figure > LEAST_US else 0.0 for figure in figures))
    return cost if cost.step_us > 0 else None
