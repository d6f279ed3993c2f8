"""Runs `basic_ragged_k` in Triton's interpreter and compares it exactly: python interpreted_ragged_k.py CASES.

CASES is a JSON list: layout, offs, m, n, total, and where wanted ctas, aligned, splits, out, alpha and whether that is
on the device. Prints "equal". Elements are small integers, so that any order of summation gives one answer. Whatever
the kernel may not read or must not write is NaN; A and B are NaN past the last group too.
"""

import importlib
import json
import os
import sys
from pathlib import Path

import numpy as np

os.environ["TRITON_INTERPRET"] = "1"
sys.path.insert(0, str(Path(__file__).parents[2]))

import triton.language as tl
from interpreted_ragged import placed, strides, word

module = importlib.import_module("aot.kernels.pointer.basic_ragged_k")
module.SCAN_WINDOW = tl.constexpr(8)  # a scan is slow here, and so a few groups need several

BLOCKS = {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 16}


def ceil_div(size: int, part: int) -> int:
    return (size + part - 1) // part


def parts(case: dict) -> list[range]:
    """The K of each matrix of C, for any `offs`."""
    found, begin, splits = [], 0, case.get("splits", 1)
    for end in case["offs"]:
        end = min(max(end, begin), case["total"])
        chunk = ceil_div(ceil_div(end - begin, splits), 64) * 64
        starts = [min(begin + part * chunk, end) for part in range(splits + 1)]
        found += [range(start, stop) for start, stop in zip(starts, [*starts[1:-1], end])]
        begin = end
    return found


def check(case: dict) -> None:
    random = np.random.default_rng(1)
    layout, groups, m, n, total = case["layout"], len(case["offs"]), case["m"], case["n"], case["total"]
    step, out = 2 if layout == "strided" else 1, np.dtype(case.get("out", "float16"))
    drawn = [random.integers(-2, 3, shape) for shape in ((m, total), (total, n))]
    a = placed(drawn[0].astype(np.float16), (1, 0) if layout[0] == "t" else (0, 1), step)
    b = placed(drawn[1].astype(np.float16), (1, 0) if layout in ("nt", "tt") else (0, 1), step)
    used = parts(case)
    end = max((part.stop for part in used), default=0)
    a[:, end:] = b[end:] = np.nan
    matrices = groups * case.get("splits", 1)
    unit = 16 // out.itemsize  # an odd number of 16 bytes in a row: what aligned kernels are guaranteed, and no more
    c_around = np.full((matrices + 2, m + 3, ((step * n + 24) // unit | 1) * unit), np.nan, out)
    c = c_around[1:-1, 1 : m + 1, 8 : 8 + step * n : step]
    offs = np.array([total, *case["offs"], total], np.int32)  # on both sides ends that must not be taken for a group's
    alpha = np.array([case.get("alpha", 1)], np.float32)
    words = [array.ctypes.data for array in (a, b, c)] + strides(a) + strides(b) + strides(c)
    words += [offs.ctypes.data + 4, alpha.ctypes.data if case.get("on_device") else 0]
    words += [7 if case.get("on_device") else int(alpha.view(np.int32)[0]), case.get("splits", 1)]
    module.basic_ragged_k[(case.get("ctas", 3),)](
        tuple(map(word, words)), groups, m, n, total, DTYPE=tl.float16,
        OUT=tl.float32 if out == np.float32 else tl.float16, LAYOUT=layout, ALIGNED=case.get("aligned", False),
        RASTER=2, **BLOCKS,
    )  # fmt: skip
    for matrix, part in enumerate(used):
        columns = slice(part.start, part.stop)
        np.testing.assert_array_equal(c[matrix], alpha * (drawn[0][:, columns] @ drawn[1][columns]))
    assert np.isnan(c_around).sum() == c_around.size - c.size, "written outside of the output"


if __name__ == "__main__":
    for each in json.loads(sys.argv[1]):
        try:
            check(each)
        except Exception as error:
            raise AssertionError(f"on {each}") from error
    print("equal")
