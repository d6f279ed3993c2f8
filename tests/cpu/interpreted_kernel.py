"""Runs a list kernel in Triton's interpreter and compares it exactly: python interpreted_kernel.py KERNEL CASE.

CASE is JSON: layout, sizes [[M, N, K], ...], blocks [M, N, K], ctas, and for `basic` aligned and, for e4m3 inputs and
float32 outputs, scales [A, B]. Prints "equal".
Elements are small integers, so that any order of summation gives one answer. Inputs end in NaN, and outputs lie in NaN
that must stay around them.
"""

import importlib
import json
import os
import sys
from pathlib import Path

import numpy as np
from e4m3 import as_e4m3

os.environ["TRITON_INTERPRET"] = "1"
sys.path.insert(0, str(Path(__file__).parents[2]))

import triton.language as tl

from aot.spec.kernels import KERNELS


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


def output(rows: int, columns: int, order: str, dtype: type) -> tuple[np.ndarray, np.ndarray]:
    """A view and the NaN that it lies in, with a row and 8 columns before it."""
    step = 2 if order == "s" else 1
    around = np.full((rows + 2, step * rounded_up(columns) + 8), np.nan, dtype)
    return around[1:-1, 8 : 8 + step * columns : step], around


def problem_list(groups: list, blocks: list[int], scales: np.ndarray | None) -> tuple[np.ndarray, int, int]:
    """The words of the list, as aot/kernels/schedule.py documents them; how many groups and tiles it has."""
    ends, records, end = [], [], 0
    for a, b, c, _ in groups:
        end += -(-c.shape[0] // blocks[0]) * -(-c.shape[1] // blocks[1])
        ends.append(end)
        records += [array.ctypes.data for array in (a, b, c)]
        records += [stride // array.itemsize for array in (a, b, c) for stride in array.strides]
        records += [*c.shape, a.shape[1]]
        records += [0, 0] if scales is None else [scales[:1].ctypes.data, scales[1:].ctypes.data]
    return np.array(ends + records, np.int64), len(groups), end


def main(kernel: str, case: dict) -> None:
    random = np.random.default_rng(1)
    layout, blocks = case["layout"], case["blocks"]
    scales = np.array(case["scales"], np.float32) if "scales" in case else None
    types = (tl.float16, tl.float16, np.float16) if scales is None else (tl.float8e4nv, tl.float32, np.float32)
    groups = [
        (
            matrix(random, m, k, layout[0]),
            matrix(random, k, n, layout[1] if layout != "strided" else "s"),
            *output(m, n, layout[0], types[2]),
        )
        for m, n, k in case["sizes"]
    ]
    read = groups if scales is None else [(as_e4m3(a), as_e4m3(b), *written) for a, b, *written in groups]
    words, count, tiles = problem_list(read, blocks, scales)
    options = dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_K"), blocks), DTYPE=types[0], OUT=types[1])
    options |= {"LAYOUT": layout, "RASTER": 2}
    if kernel == "basic":
        options |= {"ALIGNED": case["aligned"], "SCALING": "none" if scales is None else "tensor"}
    function = getattr(importlib.import_module(f"aot.kernels.{KERNELS[kernel].folder}.{kernel}"), kernel)
    function[(case["ctas"],)]((0,), words.ctypes.data, count, tiles, BY_VALUE=None, **options)
    for a, b, c, around in groups:
        product = a.astype(np.float32) @ b.astype(np.float32) * (1 if scales is None else scales.prod())
        np.testing.assert_array_equal(c, product.astype(c.dtype))
        assert np.isnan(around).sum() == around.size - c.size, "written outside of the output"
    print("equal")


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
