"""Runs `basic_ragged_k_block_scales` in Triton's interpreter and compares it exactly:
python interpreted_ragged_k_scales.py CASES.

CASES is a JSON list: offs, m, n, total, and where wanted ctas, splits, alignment, alpha, blocks, scales ("one", "a",
"b" or "none" where they are not of blocks). Prints "equal". Elements are small integers and scales powers of two, so
that any order of summation gives one answer. Whatever the kernel may not read or must not write is NaN; so are A and B
past the last group, and the scales of blocks that no group has.
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

module = importlib.import_module("aot.kernels.pointer.basic_ragged_k_block_scales")
module.SCAN_WINDOW = tl.constexpr(8)  # a scan is slow here, and so a few groups need several

BLOCKS = {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 64}
BLOCK = 128


def ceil_div(size: int, part: int) -> int:
    return (size + part - 1) // part


def groups_of(case: dict) -> list[tuple[int, int, int]]:
    """The K of each group, from and to, and its first block, for any `offs`."""
    found, begin, first, alignment = [], 0, 0, case.get("alignment", 1)
    for end in case["offs"]:
        end = min(max(end, begin), case["total"])
        end = min(ceil_div(end, alignment) * alignment, case["total"])
        found.append((begin, end, first))
        begin, first = end, first + ceil_div(end - begin, BLOCK)
    return found


def sums(case: dict, a: np.ndarray, b: np.ndarray, of_a: np.ndarray, of_b: np.ndarray) -> list[np.ndarray]:
    """Of each matrix of C: `splits` for each group, each of as many whole blocks."""
    found, splits = [], case.get("splits", 1)
    for begin, end, first in groups_of(case):
        count = ceil_div(end - begin, BLOCK)
        for part in range(splits):
            chunk = ceil_div(count, splits)
            matrix = np.zeros((case["m"], case["n"]))
            for block in range(min(part * chunk, count), min((part + 1) * chunk, count)):
                k = slice(begin + block * BLOCK, min(begin + (block + 1) * BLOCK, end))
                scale = min(first + block, of_b.shape[0] - 1)
                matrix += (a[:, k] @ b[k]) * of_a[:, scale][:, None] * of_b[scale]
            found.append(matrix)
    return found


def scales_of(case: dict, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Views into NaN, with the strides of no packed array; NaN in blocks that no group has."""
    begin, end, first = groups_of(case)[-1] if case["offs"] else (0, 0, 0)
    used = first + ceil_div(end - begin, BLOCK)
    count = case.get("blocks", used + 3)
    made = []
    for shape, axis in (((case["m"], count), 1), ((count, case["n"]), 0)):
        values = 2.0 ** random.integers(-1, 2, shape).astype(np.float32)
        values[(slice(None),) * axis + (slice(used, None),)] = np.nan
        made.append(placed(values, (0, 1), 3))
    return made[0], made[1]


def check(case: dict) -> None:
    random = np.random.default_rng(1)
    groups, m, n, total = len(case["offs"]), case["m"], case["n"], case["total"]
    drawn = [random.integers(-2, 3, shape) for shape in ((m, total), (total, n))]
    a, b = placed(drawn[0].astype(np.float16), (0, 1), 2), placed(drawn[1].astype(np.float16), (1, 0), 2)
    past = max((end for _, end, _ in groups_of(case)), default=0)
    a[:, past:] = b[past:] = np.nan
    of_a, of_b = scales_of(case, random)
    matrices = groups * case.get("splits", 1)
    c_around = np.full((matrices + 2, m + 3, 2 * n + 24), np.nan, np.float32)
    c = c_around[1:-1, 1 : m + 1, 8 : 8 + 2 * n : 2]
    offs = np.array([total, *case["offs"], total], np.int32)  # on both sides ends that must not be taken for a group's
    alpha = np.array([case.get("alpha", 1)], np.float32)
    words = [array.ctypes.data for array in (a, b, c)] + strides(a) + strides(b) + strides(c)
    words += [offs.ctypes.data + 4, 0, int(alpha.view(np.int32)[0]), case.get("splits", 1)]
    mode = case.get("scales", "blocks")
    if mode == "blocks":
        words += [of_a.ctypes.data, of_b.ctypes.data, *strides(of_a), *strides(of_b), of_b.shape[0]]
    else:
        one = [np.array([0.5], np.float32), np.array([4], np.float32)]
        given = [mode in ("one", name) for name in "ab"]
        words += [scale.ctypes.data if has else 0 for scale, has in zip(one, given)] + [0, 0, 0, 0, 1]
        factors = [float(scale[0]) if has else 1.0 for scale, has in zip(one, given)]
        of_a, of_b = np.full((m, 1), factors[0]), np.full((1, n), factors[1])
    words.append(case.get("alignment", 1))
    module.basic_ragged_k_block_scales[(case.get("ctas", 3),)](
        tuple(map(word, words)), groups, m, n, total, DTYPE=tl.float16, OUT=tl.float32, LAYOUT="strided", RASTER=2,
        **BLOCKS,
    )  # fmt: skip
    for matrix, right in zip(c, sums(case, *drawn, of_a, of_b)):
        np.testing.assert_array_equal(matrix, alpha * right)
    assert np.isnan(c_around).sum() == c_around.size - c.size, "written outside of the output"


if __name__ == "__main__":
    for each in json.loads(sys.argv[1]):
        try:
            check(each)
        except Exception as error:
            raise AssertionError(f"on {each}") from error
    print("equal")
