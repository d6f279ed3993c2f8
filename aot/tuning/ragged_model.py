"""A grouped product's time on a config: what csrc/select/cost.cpp predicts, and how measurements give its figures."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy
from scipy.optimize import least_squares

from ..spec.kernels import KERNELS
from ..spec.variants import ELEMENT_BYTES, Config
from .cost_model import Cost
from .measurement import CostKey, GradientProduct, GroupedProduct, RaggedMeasurement, by_product

FEWEST = 5  # measurements that costs can be fitted to
LEAST = 1e-3  # of a fitted figure: less is none
FIRST_GUESS = (2.5, 1.0, 0.3, 4000.0)
LEAST_ROWS = 64  # of a fitted tile, that are multiplied
COLUMNS_AS_ROWS = 69  # that all of B's columns take as long as
LOST_OF_WAVE, HALF_WAVE = 0.2, 0.65  # of fitted tiles
OVERLAPPED_K_TILES = 4  # of a ragged K; csrc/forms/grouped_work.cpp has all five too
L2_FITS, L2_SPILLS = 25e6, 45e6  # bytes that CTAs read at once; csrc/forms/grouped_work.cpp has both too
FITTED_LIMITS, SEEN_GROUPS, BEGIN_AS_ROWS = 16, 128, 38400  # of `make_plan` in kernels/hopper/tile_list.py
BOUNDS = ((1e-4, 1e-4, 1e-4, 10.0), (1e3, 1e3, 1e3, 1e5))


RaggedT = TypeVar("RaggedT", bound=RaggedMeasurement)


@dataclass(frozen=True)
class RaggedCost(Cost):
    """A Cost, and the rate in GB/s at which the config streams weights when nothing else bounds it."""

    stream_gb_s: float


@dataclass(frozen=True)
class Work:
    """What a CTA and the memory have to do: turns of tiles, steps of each in those of block_m rows, bytes of all."""

    turns: float
    steps: float
    bytes: float

    def us(self, cost: RaggedCost) -> float:
        compute = self.turns * (cost.tile_us + self.steps * cost.step_us)
        memory = self.bytes / (1e3 * cost.stream_gb_s)
        return cost.launch_us + (compute**3 + memory**3) ** (1 / 3)


def read_again(key: CostKey, row_tiles: float, depth: int, slots: int) -> float:
    """How much of a group's weights is read once more where its last row tile has rows for the first consumer group
    alone: it is done earlier, and its CTA runs ahead of those that read the same columns, where those of a cluster keep
    step. That costs nothing while L2 has all that the CTAs read. Counted for scales of blocks, whose kernels have
    clusters, and costs that are fitted with it."""
    config = key.config
    if KERNELS[key.kernel].scales != "block" or config.split != 2 or config.cluster > 1:
        return 0.0
    bytes_at_once = slots / min(row_tiles, config.raster) * config.block_n * depth  # an element has a byte
    return min(max((bytes_at_once - L2_FITS) / (L2_SPILLS - L2_FITS), 0.0), 1.0)


def bytes_of(p: GroupedProduct, used: float) -> float:
    """`used`: how many groups' weights are read."""
    outputs = p.outputs + (p.columns if p.keeps else 0)
    return ELEMENT_BYTES[p.dtype] * p.depth * (p.rows + used * p.columns) + 2 * p.rows * outputs


def part_of_step(key: CostKey, tile_rows: float) -> float:
    """What a step takes in a fitted tile of so many rows."""
    if not KERNELS[key.kernel].row_step:
        return 1.0
    most = key.config.block_m
    return (min(max(tile_rows, LEAST_ROWS), most) + COLUMNS_AS_ROWS) / (most + COLUMNS_AS_ROWS)


def fitted_turns(p: GroupedProduct, key: CostKey, slots: int) -> tuple[float, float]:
    """Of the CTA that has most, and the rows of its tiles on average: what `make_plan` makes of the split.

    Plain tiles are not counted: products take up to 3 % less with them (benchmarks/notes/skew.md)."""
    step = KERNELS[key.kernel].row_step
    columns = -(-p.columns // key.config.block_n)
    found = []
    for i in range(FITTED_LIMITS if p.experts <= SEEN_GROUPS else 1):
        row_tiles = [-(-rows // (key.config.block_m - step * i)) for rows in p.group_rows]
        count = sum(row_tiles)
        # Rounded up, each has half a step more on average.
        each = (
            sum(max(rows + step / 2 * tiles, LEAST_ROWS * tiles) for rows, tiles in zip(p.group_rows, row_tiles))
            / count
        )
        waves, last = divmod(count * columns, slots)
        turns = waves + (0 if last == 0 else HALF_WAVE if 2 * last <= slots and p.experts <= SEEN_GROUPS else 1)
        found.append((turns * (each + COLUMNS_AS_ROWS + BEGIN_AS_ROWS / p.depth), i, turns, each))
    _, _, turns, each = min(found)
    return turns, each


def gradient_steps(p: GradientProduct, config: Config) -> int:
    """k-tiles of a tile. One that is stored in quarters during the next one's first k-tiles has four at least: those
    past K are zeros (`make_ragged_k_tiling` in kernels/hopper/ragged_k_consumers.py)."""
    is_pingpong = config.consumers == 2 and config.split == 1
    in_16_bits = p.dtype == p.out == "bf16"
    is_overlapped = in_16_bits and config.slices == OVERLAPPED_K_TILES and not is_pingpong
    return max(OVERLAPPED_K_TILES if is_overlapped else 1, -(-p.each // config.block_k))


def gradient_work(p: GradientProduct, config: Config, slots: int) -> Work:
    """csrc/forms/grouped_work.cpp computes the same, of groups with as much of K each."""
    tiles = p.groups * -(-p.rows // config.block_m) * -(-p.columns // config.block_n)
    return Work(-(-tiles // slots), gradient_steps(p, config), p.bytes)


def work_of(m: RaggedMeasurement) -> Work:
    """With the split known, as the kernel has it."""
    p, config = m.product, m.key.config
    if isinstance(p, GradientProduct):
        return gradient_work(p, config, m.slots)
    row_tiles = [-(-rows // config.block_m) for rows in p.group_rows if rows]
    turns = -(-sum(row_tiles) * -(-p.columns // config.block_n) // m.slots)
    steps = -(-p.depth // config.block_k)
    if KERNELS[m.key.kernel].row_step:
        turns, tile_rows = fitted_turns(p, m.key, m.slots)
        steps *= part_of_step(m.key, tile_rows)
    short = sum(is_short(rows, config.block_m) for rows in p.group_rows)
    again = short * read_again(m.key, sum(row_tiles) / max(len(row_tiles), 1), p.depth, m.slots)
    return Work(turns, steps, bytes_of(p, len(row_tiles) + again))


def is_short(rows: int, block: int) -> bool:
    """Whether a group has more than one row tile, and the last one at most half of its rows."""
    return rows > block and 0 < rows % block <= block // 2


@dataclass(frozen=True)
class Estimate:
    """A count of which the mean is known, and how far it is from that."""

    mean: float
    deviation: float

    @property
    def least(self) -> float:
        """Counts further from the mean than this, or than `most`, are too rare to plan for."""
        return self.mean - 4 * self.deviation

    @property
    def most(self) -> float:
        return self.mean + 4 * self.deviation


def blocks_of(count: Estimate, block: float) -> Estimate:
    """ceil(count / block), at least 1, of a count that is normally distributed."""
    if count.deviation > 2 * block:  # the last one's part is spread evenly: half of it, 0.29 to either side
        return Estimate(count.mean / block + 0.5, math.hypot(count.deviation / block, 0.29))
    scale = max(count.deviation, 1e-9) * math.sqrt(2)
    passed = max(1, math.floor(count.least / block))
    mean, square = passed, passed * passed
    while (chance := 0.5 * math.erfc((passed * block + 0.5 - count.mean) / scale)) >= 1e-6:
        mean += chance
        square += (2 * passed + 1) * chance
        passed += 1
    return Estimate(mean, math.sqrt(max(0.0, square - mean * mean)))


def short_share(count: Estimate, block: float) -> float:
    """How likely `is_short` is of a group whose rows are normally distributed."""
    if count.deviation > 2 * block:
        return 0.5

    def beyond(rows: float) -> float:
        return 0.5 * math.erfc((rows + 0.5 - count.mean) / (max(count.deviation, 1e-9) * math.sqrt(2)))

    first, last = max(1, math.floor(count.least / block)), math.ceil(count.most / block)
    return sum(beyond(tiles * block) - beyond((tiles + 0.5) * block) for tiles in range(first, last + 1))


def expected_work(m: RaggedMeasurement) -> Work:
    """With rows and groups alone, as the host has them: csrc/forms/grouped_work.cpp computes the same."""
    p, config = m.product, m.key.config
    if isinstance(p, GradientProduct):
        return gradient_work(p, config, m.slots)
    share = 1 - (1 - 1 / p.experts) ** p.rows
    used = Estimate(p.experts * share, math.sqrt(p.experts * share * (1 - share)))
    mean = p.rows / used.mean
    each = Estimate(mean, math.sqrt((mean + mean * mean / 16) * (1 - 1 / p.experts)))
    row_tiles = blocks_of(each, config.block_m)
    columns = -(-p.columns // config.block_n)
    deviation = math.hypot(used.deviation * row_tiles.mean, math.sqrt(used.mean) * row_tiles.deviation)
    tiles = Estimate(used.mean * row_tiles.mean * columns, columns * deviation)
    # A normal distribution reaches counts that the groups cannot have, such as more tiles than groups of few rows.
    least_row_tiles = max(1, math.ceil(each.least / config.block_m))
    least = max(1, math.ceil(used.least)) * least_row_tiles * columns
    most = min(p.experts, p.rows) * math.ceil(each.most / config.block_m) * columns
    waves = max(blocks_of(tiles, m.slots).mean, math.ceil(least / m.slots))
    waves = min(waves, math.ceil(most / m.slots))
    steps = -(-p.depth // config.block_k)
    if KERNELS[m.key.kernel].row_step:
        waves = max(tiles.mean / m.slots + LOST_OF_WAVE, HALF_WAVE)
        steps *= part_of_step(m.key, mean / row_tiles.mean + KERNELS[m.key.kernel].row_step / 2)
    again = used.mean * short_share(each, config.block_m) * read_again(m.key, row_tiles.mean, p.depth, m.slots)
    return Work(waves, steps, bytes_of(p, used.mean + again))


def chosen(candidates: Iterable[RaggedT], costs: dict[CostKey, RaggedCost]) -> RaggedT:
    """What the model takes: the least time by expectation."""
    return min(candidates, key=lambda m: expected_work(m).us(costs[m.key]))


def _mean_loss(losses: list[float]) -> str:
    return f"mean loss {sum(losses) / max(1, len(losses)):.2f} %, at most {max(losses, default=0):.1f} %"


def summary(measurements: Iterable[RaggedMeasurement], costs: dict[CostKey, RaggedCost]) -> str:
    """What the model's choice by expectation loses, then how often each config was the best."""
    wins, losses = defaultdict(int), []
    for candidates in by_product(m for m in measurements if m.key in costs).values():
        best, choice = min(candidates, key=lambda m: m.us), chosen(candidates, costs)
        wins[best.key.name] += 1
        losses.append((100 * (choice.us / best.us - 1), choice, best))
    by_kind = defaultdict(list)
    for loss, choice, _ in losses:
        by_kind[choice.product.kind].append(loss)
    lines = [f"{len(losses)} grouped products, {_mean_loss([loss for loss, *_ in losses])}"]
    lines += [f"{len(same):4} in {kind}: {_mean_loss(same)}" for kind, same in sorted(by_kind.items())]
    for loss, choice, best in sorted(losses, key=lambda entry: -entry[0])[:10]:
        lines.append(
            f"{best.product.facts}: model {choice.key.config!s}, "
            f"best {best.key.config!s} {best.us:.1f} us, loss {loss:.1f} %"
        )
    lines += [f"best on {count:3} products: {config}" for config, count in sorted(wins.items(), key=lambda w: -w[1])]
    return "\n".join(lines)


def fit_all_ragged(*parts: Sequence[RaggedMeasurement]) -> dict[CostKey, RaggedCost]:
    """The costs of each config that has some measurements; a part counts as much as another, however long it is."""
    observations, shares, best = defaultdict(list), defaultdict(list), {}
    for part in parts:
        counts = Counter(m.key for m in part)
        for m in part:
            observations[m.key].append(m)
            shares[m.key].append(1 / counts[m.key])
            best[m.product] = min(m.us, best.get(m.product, m.us))
    return {
        key: fit_ragged(rows, [best[m.product] for m in rows], shares[key])
        for key, rows in observations.items()
        if len(rows) >= FEWEST
    }


def fit_ragged(
    measurements: Sequence[RaggedMeasurement], best_us: Sequence[float], shares: Sequence[float]
) -> RaggedCost:
    """The RaggedCost with the least squared error of the logarithms; how far a measurement is from the best time of its
    product says how little it weighs, besides its share, since nobody takes a config where it is slow."""
    us = numpy.array([m.us for m in measurements])
    weights = numpy.sqrt(len(shares) * numpy.array(shares)) / (2 * us / numpy.array(best_us) - 1)
    works = [work_of(m) for m in measurements]
    turns, steps, moved = numpy.array([(work.turns, work.steps, work.bytes) for work in works]).T

    def errors(logs: numpy.ndarray) -> numpy.ndarray:
        launch_us, tile_us, step_us, stream_gb_s = numpy.exp(logs)
        compute, memory = turns * (tile_us + steps * step_us), moved / (1e3 * stream_gb_s)
        return numpy.log((launch_us + numpy.cbrt(compute**3 + memory**3)) / us) * weights

    jacobian: Any = "jac"  # a float by default in SciPy 1.15, from which a type checker takes its type
    fitted = least_squares(errors, numpy.log(FIRST_GUESS), bounds=numpy.log(BOUNDS), x_scale=jacobian)
    launch_us, tile_us, step_us, stream_gb_s = (
        float(f"{figure:.4g}") if figure > LEAST else 0.0 for figure in numpy.exp(fitted.x)
    )
    return RaggedCost(launch_us, tile_us, max(step_us, LEAST), stream_gb_s)  # 0: the selector takes it as not measured
