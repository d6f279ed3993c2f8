"""The tables: text, sorted, one row a line.

aot/tables/sm<architecture>/<kernel>.json are the configs that a kernel is compiled in. aot/tables/<gpu>/ is what was
measured on a GPU: <kernel>.json, the figures of the cost model by config; shapes.json and layers.json, the lists and
MoE layers on which the model's choice is not the best.
"""

import functools
import hashlib
import json
import re
from collections.abc import Iterable
from pathlib import Path

from .abi import EPILOGUES, SOURCES
from .variants import TABLES, config_of, dtypes_of

_MASK = (1 << 64) - 1
_LAYER_SEED = 0x6C61796572  # "layer": keeps keys of layers apart from those of lists

COSTS = ("launch_us", "tile_us", "step_us", "stream_gb_s")
LAYER = ("experts", "columns", "depth", "load")  # what a layer's key is made of
PLAIN = {"epilogue": EPILOGUES[0], "source": SOURCES[0]}  # of a row that says nothing else
_SORTED_BY = {
    "configs": lambda row: (row["alignment"], dtypes_of(row), config_of(row)),
    "costs": lambda row: (
        row["alignment"],
        dtypes_of(row),
        [int(number) for number in re.findall(r"\d+", row["config"])],
        row.get("outs", []),
    ),
    "shapes": lambda row: [row[name] for name in ("dtype", "layout", "groups")],
    "layers": lambda row: layer_of(row),
    "gpus": lambda row: row["name"],
}


class UnknownGpuError(Exception):
    """Tables that do not say which GPU they were measured on, or say another than their folder."""


def read_table(path: Path) -> dict:
    """One of "configs", "costs", "shapes", "layers", "gpus": [row, ...]; what was measured has besides
    "measured": {part: GPU, driver, date and build}."""
    return json.loads(path.read_text())


def table_text(table: dict) -> str:
    """The table as it is kept in aot/tables: rows sorted by their key, each on a line of its own."""
    (key,) = table.keys() - {"measured"}
    measured = f'"measured": {json.dumps(table["measured"], sort_keys=True)},\n' if "measured" in table else ""
    body = ",\n".join(json.dumps(row) for row in sorted(table[key], key=_SORTED_BY[key]))
    return f'{{\n{measured}"{key}": [\n{body}\n]\n}}\n'


def write_table(path: Path, table: dict) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(table_text(table))


def measured_rows(path: Path, key: str, gpu: str) -> list[dict]:
    """The rows of a GPU's table, none where there is no such file; UnknownGpuError if they are another GPU's."""
    if not path.exists():
        return []
    table = read_table(path)
    names = {about.get("gpu") for about in (table.get("measured") or {}).values()}
    if names != {gpu}:
        said = " and ".join(sorted(map(str, names))) or "no GPU"
        raise UnknownGpuError(f'{path.name} lies in the folder of {gpu}, but its "measured" names {said}')
    return table[key]


def cost_path(folder: Path, kernel: str) -> Path:
    return folder / f"{kernel}.json"


def cost_rows(folder: Path, kernel: str, gpu: str) -> list[dict]:
    """{"alignment", "config", "launch_us", "tile_us", "step_us"}, "dtypes" where they are not the 16-bit ones, "outs"
    where they are not for all outputs, and "stream_gb_s" where weights are streamed. What was not measured but taken
    from a relative says so in "like"."""
    return measured_rows(cost_path(folder, kernel), "costs", gpu)


def shapes_path(folder: Path) -> Path:
    return folder / "shapes.json"


def shape_rows(folder: Path, gpu: str) -> list[dict]:
    """Measured shapes: {"dtype", "layout", "groups": [[M, N, K, count], ...], "kernel", "config", "us"}."""
    return measured_rows(shapes_path(folder), "shapes", gpu)


def layers_path(folder: Path) -> Path:
    return folder / "layers.json"


def layer_rows(folder: Path, gpu: str) -> list[dict]:
    """Measured MoE layers: {"dtype", "experts", "columns", "depth", "load", "kernel", "config", "us"}, "epilogue" and
    "source" where the product is not a plain one."""
    return measured_rows(layers_path(folder), "layers", gpu)


def layer_of(row: dict) -> tuple:
    """What a row of `layer_rows` was measured on: there is one row of each at most."""
    return tuple((PLAIN | row)[name] for name in ("dtype", *LAYER, *PLAIN))


def tables_sha256(folder: Path = TABLES) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.json")):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def shape_key(groups: Iterable[tuple[int, int, int, int]]) -> int:
    """A 64-bit name of a multiset of (M, N, K, count), the same in any order; tuned.cpp computes alike."""
    total, count = 0, 0
    for m, n, k, times in groups:
        total += times * _mix64(_mix64(_mix64(m) + n) + k)
        count += times
    return (total + _mix64(count)) & _MASK


def layer_key(experts: int, columns: int, depth: int, load: int) -> int:
    """A 64-bit name of a ragged product with so many half powers of two of rows an expert; tuned.cpp computes alike."""
    return functools.reduce(lambda key, size: _mix64(key + size), (experts, columns, depth, load), _mix64(_LAYER_SEED))


def signed_key(key: int, epilogue: str, source: str) -> int:
    """The key of a product that does more than that of `key`; table_key.cpp computes alike."""
    if (epilogue, source) == (EPILOGUES[0], SOURCES[0]):
        return key
    return _mix64((key + EPILOGUES.index(epilogue) * len(SOURCES) + SOURCES.index(source)) & _MASK)


def _mix64(value: int) -> int:
    """The finalizer of splitmix64."""
    x = (value + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)
