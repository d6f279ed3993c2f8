"""GPUs: on which of them tables were measured, and the rates by which the cost model is scaled to others.

aot/tables/gpus.json has a row for each: its name as drivers tell it, without "NVIDIA"; multiprocessors; the rate of its
tensor cores in 16-bit products without sparsity, and where that is from; for GPUs that tables were measured on, the
clock of the multiprocessors and the memory rate besides, both as the driver tells them.
"""

import re
from pathlib import Path

from .tables import read_table
from .variants import TABLES

GPUS = TABLES / "gpus.json"
MODEL = ("sm", "multiprocessors", "clock_mhz", "memory_gb_s", "tensor_tflop_s")  # what scaling from a GPU needs


class UnknownGpuError(Exception):
    """A table does not say which GPU it was measured on, or gpus.json lacks that GPU's facts."""


def gpu_rows() -> list[dict]:
    """{"name", "sm", "multiprocessors", "tensor_tflop_s", "source"}, and of some "clock_mhz" and "memory_gb_s"."""
    return read_table(GPUS)["gpus"]


def row_named(name: str) -> dict | None:
    """The row with the longest name that `name` has as whole words; csrc/driver/gpus.cpp finds the same."""
    rows = (row for row in gpu_rows() if re.search(rf"(?<![0-9A-Za-z]){re.escape(row['name'])}(?![0-9A-Za-z])", name))
    return max(rows, key=lambda row: len(row["name"]), default=None)


def facts_of(name: str) -> dict:
    """The facts in MODEL of a GPU that tables were measured on."""
    row = row_named(name) or {}
    if missing := [fact for fact in MODEL if fact not in row]:
        raise UnknownGpuError(
            f"{GPUS.name} lacks {', '.join(missing)} of {name}, which tables are measured on: the cost model is scaled "
            "from them to other GPUs; add them, with their source"
        )
    return {fact: row[fact] for fact in MODEL}


def measured_on(path: Path) -> str | None:
    """The GPU that a table's figures are of, as its driver names it; None where nothing was measured."""
    names = {about["gpu"] for about in (read_table(path)["measured"] or {}).values()}
    if len(names) > 1:
        raise UnknownGpuError(f"{path.name} was measured on {' and '.join(sorted(names))}: it can be of one GPU only")
    return next(iter(names), None)


def gpu_of(path: Path) -> str:
    """The same of a table that has measured figures."""
    if gpu := measured_on(path):
        return gpu
    raise UnknownGpuError(f'{path.name} has measured figures, but its "measured" does not say which GPU they are of')


def measured_for(sm: int, folder: Path = TABLES) -> str | None:
    """The GPU that the tables of an architecture were measured on, the first by name if there are several."""
    names = {measured_on(path) for path in folder.glob(f"*_sm{sm}.json")} - {None}
    return min(names, default=None)
