"""The time of a list on a config: what csrc/select/cost.cpp predicts, and how measurements give its three figures."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from ..spec.variants import Config


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


def fit(observations: Sequence[tuple[int, int, float]]) -> Cost:
    """The non-negative Cost with the least squared relative error over (tiles, steps, microseconds).

    Each subset of the three figures is solved without bounds, and the best solution that keeps them is the bounded
    optimum. `step_us` is in every subset: 0 means "never measured" to the selector.
    """
    import numpy

    tiles, steps, us = numpy.array(observations, dtype=float).T
    relative = numpy.stack([numpy.ones_like(us), tiles, steps], axis=1) / us[:, None]
    best, best_error = None, numpy.inf
    for others in itertools.chain.from_iterable(itertools.combinations((0, 1), size) for size in range(3)):
        columns = [*others, 2]
        solution = numpy.linalg.lstsq(relative[:, columns], numpy.ones_like(us), rcond=None)[0]
        error = numpy.square(relative[:, columns] @ solution - 1).sum()
        if (solution >= 0).all() and error < best_error:
            best, best_error = numpy.zeros(3), error
            best[columns] = solution
    return Cost(*(float(f"{figure:.4g}") for figure in best))
