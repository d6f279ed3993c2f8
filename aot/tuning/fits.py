"""Costs from measurements: fitted, else those that the tables have, else those of a relative."""

from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from pathlib import Path

from ..spec.abi import EPILOGUES, SOURCES
from ..spec.arch import ARCHS
from ..spec.gpus import Gpu
from ..spec.kernels import KERNELS
from ..spec.tables import cost_rows
from ..spec.variants import config_of, dtypes_of, table_rows
from . import list_rows
from .cost_model import Cost
from .measurement import (
    CostKey,
    GradientMeasurement,
    GroupedMeasurement,
    ListMeasurement,
    Measurement,
    Product,
    ProductT,
    key_outs,
)
from .ragged_model import RaggedCost, fit_all_ragged
from .relatives import Estimate, Figures, estimated_cost, figures_of, times_of

ALL_OUTS = ("bf16", "fp32")  # where a row of a table names none, as far as costs tell outputs apart


def families_of(kernel: str) -> tuple[str, ...]:
    """Those that the kernel's figures come from. None: they are lent by another kernel with the same tile, or set by
    hand, as those of stacks and of layers in fp8."""
    one = KERNELS[kernel]
    if one.form == "list":
        return ("lists",)
    if one.extents == "k_ends":
        return ("gradients",)
    is_plain = (one.epilogue, one.source) == (EPILOGUES[0], SOURCES[0])
    if one.extents != "m_ends" or (one.scales and not is_plain):
        return ()
    if one.scales:
        return ("scaled",)
    return ("ragged", "layers") if is_plain else ("fused",)


@dataclass(frozen=True)
class Measured:
    """The measurements of a GPU by family."""

    lists: tuple[ListMeasurement, ...] = ()
    ragged: tuple[GroupedMeasurement, ...] = ()
    layers: tuple[GroupedMeasurement, ...] = ()
    fused: tuple[GroupedMeasurement, ...] = ()
    scaled: tuple[GroupedMeasurement, ...] = ()
    gradients: tuple[GradientMeasurement, ...] = ()

    @property
    def all(self) -> tuple[Measurement[Product], ...]:
        return (*self.lists, *self.ragged, *self.layers, *self.fused, *self.scaled, *self.gradients)

    def without(self, keys: set[CostKey]) -> "Measured":
        def left(part: tuple[Measurement[ProductT], ...]) -> tuple[Measurement[ProductT], ...]:
            return tuple(m for m in part if m.key not in keys)

        return Measured(
            left(self.lists),
            left(self.ragged),
            left(self.layers),
            left(self.fused),
            left(self.scaled),
            left(self.gradients),
        )

    @property
    def families(self) -> set[str]:
        """Those that something was measured of."""
        return {name for name, part in vars(self).items() if part}


@dataclass(frozen=True)
class Fits:
    """Figures by config. `fitted` to measurements of now, `kept` as the tables have them from earlier ones, `estimated`
    from a relative of one of these: of families that were measured now anew, of others as the tables have them."""

    fitted: dict[CostKey, Figures]
    kept: dict[CostKey, Figures]
    estimated: dict[CostKey, Estimate]

    @classmethod
    def of(cls, found: Measured, gpu: Gpu, folder: Path, dropped: Set[CostKey] = frozenset()) -> "Fits":
        """`dropped`: configs that are not to be compiled any more."""
        fitted = {key: vars(cost) for key, cost in list_rows.fit_all(found.lists).items()}
        if found.ragged:  # layers alone are too much alike for a model
            fitted |= {key: vars(cost) for key, cost in fit_all_ragged(found.ragged, found.layers).items()}
        for part in (found.fused, found.scaled, found.gradients):
            fitted |= {key: vars(cost) for key, cost in fit_all_ragged(part).items()}
        compiled = set(compiled_keys(gpu.kernels_sm)) - dropped
        kept = {key: row for key, row in costs_in(folder, gpu).items() if key in compiled and key not in fitted}
        known, times = kept | fitted, times_of(found.all)
        families = found.families if found.ragged else found.families - {"layers"}
        measured = {key for key in compiled if families.intersection(families_of(key.kernel))}
        earlier = {key: estimate for key, estimate in estimates_in(folder, gpu).items() if key in compiled - measured}
        # None of other families: what the reference GPU measured of them is better than an unlike kernel's figures.
        new = {key: estimated_cost(key, known, times) for key in sorted(measured - known.keys(), key=str)}
        return cls(fitted, kept, earlier | {key: estimate for key, estimate in new.items() if estimate})

    @property
    def figures(self) -> dict[CostKey, Figures]:
        """Of every config that has some."""
        return {key: estimate.figures for key, estimate in self.estimated.items()} | self.kept | self.fitted

    @property
    def lists(self) -> dict[CostKey, Cost]:
        return {
            key: Cost(row["launch_us"], row["tile_us"], row["step_us"])
            for key, row in self.figures.items()
            if KERNELS[key.kernel].form == "list" and not key.fp8
        }

    @property
    def grouped(self) -> dict[CostKey, RaggedCost]:
        return {
            key: RaggedCost(row["launch_us"], row["tile_us"], row["step_us"], row["stream_gb_s"])
            for key, row in self.figures.items()
            if KERNELS[key.kernel].form == "grouped" and row.get("stream_gb_s", 0) > 0
        }


def compiled_dtypes(sm: int) -> dict[CostKey, tuple[str, ...]]:
    """The configs of an architecture, and the dtypes of the inputs of each."""
    found: dict[CostKey, tuple[str, ...]] = {}
    for kernel in KERNELS.values():
        if kernel.multiplies and kernel.runs_on(ARCHS[sm]):
            for row in table_rows(kernel.name, sm):
                found |= dict.fromkeys(keys_of_config(kernel.name, row), dtypes_of(row))
    return found


def keys_of_config(kernel: str, row: dict) -> list[CostKey]:
    """Of a row of the configs that a kernel is compiled in."""
    whole = CostKey(kernel, row["alignment"], "e4m3" in dtypes_of(row), config_of(row))
    return [whole._replace(out=out) for out in key_outs(kernel, row.get("outs", ALL_OUTS))]


def compiled_keys(sm: int) -> Iterable[CostKey]:
    """The configs of an architecture."""
    return compiled_dtypes(sm).keys()


def costs_in(folder: Path, gpu: Gpu) -> dict[CostKey, Figures]:
    """Those that a GPU's tables have from measurements; not those that were estimated."""
    return {key: figures_of(row) for key, row in _rows_in(folder, gpu) if "like" not in row}


def estimates_in(folder: Path, gpu: Gpu) -> dict[CostKey, Estimate]:
    """Those that a GPU's tables have from relatives."""
    named = {(key.alignment, key.name): key for key in compiled_keys(gpu.kernels_sm)}
    return {
        key: Estimate(figures_of(row), named[row["alignment"], row["like"]], row["factor"])
        for key, row in _rows_in(folder, gpu)
        if (row["alignment"], row.get("like")) in named
    }


def _rows_in(folder: Path, gpu: Gpu) -> Iterator[tuple[CostKey, dict]]:
    """The rows of costs of a GPU's tables, but for those of configs that are not compiled any more."""
    configs = {(*key[:3], str(key.config), key.out): key for key in compiled_keys(gpu.kernels_sm)}
    for kernel in KERNELS:
        for row in cost_rows(folder, kernel, gpu.gpu):
            for out in key_outs(kernel, row.get("outs", ALL_OUTS)):
                if key := configs.get((kernel, row["alignment"], "e4m3" in dtypes_of(row), row["config"], out)):
                    yield key, row
