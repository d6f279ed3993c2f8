"""Runs a list kernel in Triton's interpreter and compares it exactly: python interpreted_kernel.py KERNEL CASE.

CASE is JSON: layout, sizes [[M, N, K], ...], blocks [M, N, K], ctas, and for `basic` aligned. Prints "equal".
Elements are small integers, so that any order of summation gives one answer. Inputs end in NaN, and outputs lie in NaN
that must stay around them.
"""

import importlib
import json
import os
import sys
from pathlib import Path

import numpy as np

os.environ["TRITON_INTERPRET"] = "1"
sys.path.insert(0, str(Path(__file__).parents[2]))

import triton.language as tl  # noqa: E402


def rounded_up(size: int) -> int:
    """The next multiple of 8, the stride that TMA and the aligned variants ask for, and 8 more."""
    return (size + 7) // 8 * 8 + 8


def matrix(random, rows: int, columns: int, order: str) -> np.ndarray:
    """A view, in NaN: columns ("n"), rows ("t") or neither ("s") contiguous."""
    if order == "t":
        return matrix(random, columns, rows, "n").T
    step = 2 if order == "s" else 1
    around = np.full((rows, step * rounded_up(columns)), np.nan, np.float16)
    view = around[:, : step * columns : step]
    view[...] = random.integers(-2, 3, (rows, columns))
    return view


def output(rows: int, columns: int, order: str) -> tuple[np.ndarray, np.ndarray]:
    """A view and the NaN that it lies in, with a row and 8 columns before it."""
    step = 2 if order == "s" else 1
    around = np.full((rows + 2, step * rounded_up(columns) + 8), np.nan, np.float16)
    return around[1:-1, 8 : 8 + step * columns : step], around


def problem_list(groups: list, blocks: list[int]) -> tuple[np.ndarray, int, int]:
    """The words of the list, as aot/kernels/schedule.py documents them; how many groups and tiles it has."""
    ends, records, end = [], [], 0
    for a, b, c, _ in groups:
        end += -(-c.shape[0] // blocks[0]) * -(-c.shape[1] // blocks[1])
        ends.append(end)
        records += [array.ctypes.data for array in (a, b, c)]
        records += [stride // 2 for array in (a, b, c) for stride in array.strides]
        records += [*c.shape, a.shape[1]]
    return np.array(ends + records, np.int64), len(groups), end


def main(kernel: str, case: dict) -> None:
    random = np.random.default_rng(1)
    layout, blocks = case["layout"], case["blocks"]
    groups = [
        (matrix(random, m, k, layout[0]), matrix(random, k, n, layout[1] if layout != "strided" else "s"))
        + output(m, n, layout[0])
        for m, n, k in case["sizes"]
    ]
    words, count, tiles = problem_list(groups, blocks)
    options = dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_K"), blocks), DTYPE=tl.float16, LAYOUT=layout, RASTER=2)
    if kernel == "basic":
        options["ALIGNED"] = case["aligned"]
    function = getattr(importlib.import_module(f"aot.kernels.{kernel}"), kernel)
    function[(case["ctas"],)]((0,), words.ctypes.data, count, tiles, BY_VALUE=None, **options)
    for a, b, c, around in groups:
        np.testing.assert_array_equal(c, (a.astype(np.float32) @ b.astype(np.float32)).astype(np.float16))
        assert np.isnan(around).sum() == around.size - c.size, "written outside of the output"
    print("equal")


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
