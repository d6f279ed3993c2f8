"""A ragged product's time on a config: what csrc/select/cost.cpp predicts, and how measurements give its figures."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

from ..spec.variants import ELEMENT_BYTES, KERNELS, Config, config_of, dtypes_of, table_rows
from .cost_model import Cost
from .sweep_ragged import RaggedMeasurement

RaggedKey = tuple[bool, str, Config]  # whether fp8, kernel, config
FEWEST = 5  # measurements that costs can be fitted to
LEAST = 1e-3  # of a fitted figure: less is none


@dataclass(frozen=True)
class RaggedCost(Cost):
    """A Cost, and the rate in GB/s at which the config streams weights when nothing else bounds it."""

    stream_gb_s: float


@dataclass(frozen=True)
class Work:
    """What a CTA and the memory have to do: turns of tiles, steps of each, bytes of all."""

    turns: float
    steps: int
    bytes: float

    def us(self, cost: RaggedCost) -> float:
        compute = self.turns * (cost.tile_us + self.steps * cost.step_us)
        memory = self.bytes / (1e3 * cost.stream_gb_s)
        return cost.launch_us + (compute**3 + memory**3) ** (1 / 3)


def bytes_of(dtype: str, rows: float, used: float, columns: int, depth: int) -> float:
    return ELEMENT_BYTES[dtype] * depth * (rows + used * columns) + 2 * rows * columns


def work_of(m: RaggedMeasurement) -> Work:
    """With the split known, as the kernel has it."""
    tiles = sum(-(-rows // m.config.block_m) for rows in m.group_rows) * -(-m.columns // m.config.block_n)
    used = sum(map(bool, m.group_rows))
    moved = bytes_of(m.dtype, m.rows, used, m.columns, m.depth)
    return Work(-(-tiles // m.slots), -(-m.depth // m.config.block_k), moved)


@dataclass(frozen=True)
class Estimate:
    """A count of which the mean is known, and how far it is from that."""

    mean: float
    deviation: float


def blocks_of(count: Estimate, block: float) -> Estimate:
    """ceil(count / block), at least 1, of a count that is normally distributed."""
    if count.deviation > 2 * block:  # the last one's part is spread evenly: half of it, 0.29 to either side
        return Estimate(count.mean / block + 0.5, math.hypot(count.deviation / block, 0.29))
    scale = max(count.deviation, 1e-9) * math.sqrt(2)
    passed = max(1, math.floor((count.mean - 4 * count.deviation) / block))
    mean, square = passed, passed * passed
    while (chance := 0.5 * math.erfc((passed * block + 0.5 - count.mean) / scale)) >= 1e-6:
        mean += chance
        square += (2 * passed + 1) * chance
        passed += 1
    return Estimate(mean, math.sqrt(max(0.0, square - mean * mean)))


def expected_work(m: RaggedMeasurement) -> Work:
    """With rows and groups alone, as the host has them: csrc/select/cost.cpp computes the same."""
    share = 1 - (1 - 1 / m.experts) ** m.rows
    used = m.experts * share
    each = m.rows / used
    spread = math.sqrt((each + each * each / 16) * (1 - 1 / m.experts))
    row_tiles = blocks_of(Estimate(each, spread), m.config.block_m)
    columns = -(-m.columns // m.config.block_n)
    variance = used * (1 - share) * row_tiles.mean**2 + used * row_tiles.deviation**2
    tiles = Estimate(used * row_tiles.mean * columns, columns * math.sqrt(variance))
    moved = bytes_of(m.dtype, m.rows, used, m.columns, m.depth)
    return Work(blocks_of(tiles, m.slots).mean, -(-m.depth // m.config.block_k), moved)


def ragged_key(measurement: RaggedMeasurement) -> RaggedKey:
    return measurement.dtype == "e4m3", measurement.kernel, measurement.config


def chosen(candidates: Iterable[RaggedMeasurement], costs: dict[RaggedKey, RaggedCost]) -> RaggedMeasurement:
    """What the model takes: the least time by expectation."""
    return min(candidates, key=lambda m: expected_work(m).us(costs[ragged_key(m)]))


def summary(measurements: Iterable[RaggedMeasurement], costs: dict[RaggedKey, RaggedCost]) -> str:
    """What the model's choice by expectation loses, then how often each config was the best."""
    shapes, wins, losses = defaultdict(list), defaultdict(int), []
    for m in measurements:
        if ragged_key(m) in costs:
            shapes[m.shape].append(m)
    for candidates in shapes.values():
        best, choice = min(candidates, key=lambda m: m.us), chosen(candidates, costs)
        wins[f"{best.dtype} {best.kernel} {best.config}"] += 1
        losses.append((100 * (choice.us / best.us - 1), choice, best))
    lines = [f"{len(losses)} ragged products, mean loss {sum(loss for loss, *_ in losses) / max(1, len(losses)):.2f} %"]
    for loss, choice, best in sorted(losses, key=lambda entry: -entry[0])[:10]:
        lines.append(
            f"{best.dtype} {best.experts} groups, {best.rows} rows ({best.split}), "
            f"N {best.columns}, K {best.depth}: model {choice.config!s}, best {best.config!s} {best.us:.1f} us, "
            f"loss {loss:.1f} %"
        )
    lines += [f"best on {count:3} products: {config}" for config, count in sorted(wins.items(), key=lambda w: -w[1])]
    return "\n".join(lines)


def costs_in_tables(sm: int) -> dict[RaggedKey, RaggedCost]:
    """Those that selection has now."""
    return {
        ("e4m3" in dtypes_of(row), kernel, config_of(row)): RaggedCost(*(row[f.name] for f in fields(RaggedCost)))
        for kernel in KERNELS
        if KERNELS[kernel].form == "grouped"
        for row in table_rows(kernel, sm)
        if row.get("stream_gb_s", 0) > 0
    }


def fit_all_ragged(*parts: Sequence[RaggedMeasurement]) -> dict[RaggedKey, RaggedCost]:
    """The costs of each config that has some measurements; a part counts as much as another, however long it is."""
    observations, shares, best = defaultdict(list), defaultdict(list), {}
    for part in parts:
        counts = Counter(ragged_key(m) for m in part)
        for m in part:
            key = ragged_key(m)
            observations[key].append(m)
            shares[key].append(1 / counts[key])
            best[m.shape] = min(m.us, best.get(m.shape, m.us))
    return {
        key: fit_ragged(rows, [best[m.shape] for m in rows], shares[key])
        for key, rows in observations.items()
        if len(rows) >= FEWEST
    }


def fit_ragged(
    measurements: Sequence[RaggedMeasurement], best_us: Sequence[float], shares: Sequence[float]
) -> RaggedCost:
    """The RaggedCost with the least squared error of the logarithms; how far a measurement is from the best time of its
    product says how little it weighs, besides its share, since nobody takes a config where it is slow."""
    import numpy

    us = numpy.array([m.us for m in measurements])
    weights = numpy.sqrt(len(shares) * numpy.array(shares)) / (2 * us / numpy.array(best_us) - 1)
    works = [work_of(m) for m in measurements]

    def errors(logs):
        cost = RaggedCost(*numpy.exp(logs))
        return numpy.log([work.us(cost) for work in works] / us) * weights

    fitted = numpy.exp(levenberg_marquardt(errors, numpy.log([2.5, 1.0, 0.3, 4000.0])))
    return RaggedCost(*(float(f"{figure:.4g}") if figure > LEAST else 0.0 for figure in fitted))


def levenberg_marquardt(errors, x, rounds: int = 60):
    """The x with the least squared errors, from a first guess."""
    import numpy

    damping, step, current = 1e-2, 1e-4, errors(x)
    for _ in range(rounds):
        jacobian = numpy.stack([(errors(x + step * unit) - current) / step for unit in numpy.eye(len(x))], axis=1)
        normal = jacobian.T @ jacobian
        move = numpy.linalg.solve(normal + damping * numpy.diag(normal.diagonal() + 1e-9), -jacobian.T @ current)
        moved = errors(x + move)
        if moved @ moved < current @ current:
            x, current, damping = x + move, moved, damping / 3
        else:
            damping *= 4
    return x
