"""The time of a ragged product on a config: what csrc/cost.cpp predicts, and how its figures come from measurements."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .cost_model import Cost, fit
from .sweep_ragged import RaggedMeasurement
from .variants import ELEMENT_BYTES, Config

MEMORY_BOUND = 0.7  # part of a measured time that the bytes alone account for, from which they bound it


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
        memory = self.bytes / (1e3 * cost.stream_gb_s)
        return cost.launch_us + max(self.turns * (cost.tile_us + self.steps * cost.step_us), memory)


def bytes_of(dtype: str, rows: float, used: float, columns: int, depth: int) -> float:
    return ELEMENT_BYTES[dtype] * depth * (rows + used * columns) + 2 * rows * columns


def work_of(m: RaggedMeasurement) -> Work:
    """With the split known, as the kernel has it."""
    tiles = sum(-(-rows // m.config.block_m) for rows in m.group_rows) * -(-m.columns // m.config.block_n)
    used = sum(map(bool, m.group_rows))
    moved = bytes_of(m.dtype, sum(m.group_rows), used, m.columns, m.depth)
    return Work(-(-tiles // m.slots), -(-m.depth // m.config.block_k), moved)


def expected_row_tiles(rows: float, block_m: int) -> float:
    if rows > 8 * block_m:
        return rows / block_m + 0.5
    spread = math.sqrt(rows + rows * rows / 16)
    return 1 + sum(0.5 * math.erfc((j * block_m - rows) / spread / math.sqrt(2)) for j in range(1, 17))


def expected_work(dtype: str, groups: int, rows: int, columns: int, depth: int, config: Config, slots: int) -> Work:
    """With rows and groups alone, as the host has them: csrc/cost.cpp computes the same."""
    used = -groups * math.expm1(-rows / groups)
    tiles = used * expected_row_tiles(rows / used, config.block_m) * -(-columns // config.block_n)
    turns = max(1.0, tiles / slots + (0.5 if tiles > slots else 0.0))
    return Work(turns, -(-depth // config.block_k), bytes_of(dtype, rows, used, columns, depth))


def fit_ragged(measurements: Sequence[RaggedMeasurement]) -> RaggedCost:
    """The memory's rate is the best that was seen, the rest is fitted to what memory did not bound."""
    stream = max(work_of(m).bytes / m.us for m in measurements) / 1e3
    free = [m for m in measurements if work_of(m).bytes / (1e3 * stream) < MEMORY_BOUND * m.us]
    cost = fit([(w.turns, w.turns * w.steps, m.us) for m in free for w in (work_of(m),)])
    return RaggedCost(cost.launch_us, cost.tile_us, cost.step_us, float(f"{stream:.4g}"))
