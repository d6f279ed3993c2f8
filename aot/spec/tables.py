"""The tables of tuned configs and measured shapes: text, sorted, one row a line."""

import functools
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from .variants import TABLES, config_of, dtypes_of

_MASK = (1 << 64) - 1
_LAYER_SEED = 0x6C61796572  # "layer": keeps keys of layers apart from those of lists

LAYER = ("experts", "columns", "depth", "load")  # what a layer's key is made of
_SORTED_BY = {"shapes": ("dtype", "layout", "groups"), "layers": ("dtype", *LAYER), "gpus": ("name",)}


def read_table(path: Path) -> dict:
    """{"measured": {part: GPU, driver, date and build} or None, "configs", "shapes", "layers" or "gpus": [row, ...]}"""
    return json.loads(path.read_text())


def table_text(table: dict) -> str:
    """The table as it is kept in aot/tables: rows sorted by their text, each on a line of its own."""
    (key,) = table.keys() - {"measured"}
    if key == "configs":
        rows = sorted(table[key], key=lambda row: (row["alignment"], dtypes_of(row), config_of(row)))
    else:
        rows = sorted(table[key], key=lambda row: [row[name] for name in _SORTED_BY[key]])
    body = ",\n".join(json.dumps(row) for row in rows)
    return f'{{\n"measured": {json.dumps(table["measured"], sort_keys=True)},\n"{key}": [\n{body}\n]\n}}\n'


def write_table(path: Path, table: dict) -> None:
    path.write_text(table_text(table))


def shapes_path(sm: int, folder: Path = TABLES) -> Path:
    return folder / f"shapes_sm{sm}.json"


def shape_rows(sm: int, folder: Path = TABLES) -> list[dict]:
    """Measured shapes: {"dtype", "layout", "groups": [[M, N, K, count], ...], "kernel", "config", "us"}."""
    path = shapes_path(sm, folder)
    return read_table(path)["shapes"] if path.exists() else []


def layers_path(sm: int, folder: Path = TABLES) -> Path:
    return folder / f"layers_sm{sm}.json"


def layer_rows(sm: int, folder: Path = TABLES) -> list[dict]:
    """Measured MoE layers: {"dtype", "experts", "columns", "depth", "load", "kernel", "config", "us"}."""
    path = layers_path(sm, folder)
    return read_table(path)["layers"] if path.exists() else []


def tables_sha256(folder: Path = TABLES) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.json")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
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


def _mix64(value: int) -> int:
    """The finalizer of splitmix64."""
    x = (value + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)
