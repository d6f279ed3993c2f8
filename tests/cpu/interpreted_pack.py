"""Runs `pack` in Triton's interpreter on random lists and compares memory exactly: python interpreted_pack.py CASES.

CASES is a JSON list of cases: groups, record_words, differs (positions of a group's words, its end first, that differ),
block. What is written lies between words that must stay. Prints "equal".
"""

import json
import mmap
import os
import sys
from pathlib import Path

import numpy as np

os.environ["TRITON_INTERPRET"] = "1"
sys.path.insert(0, str(Path(__file__).parents[2]))

from aot.kernels.memory.pack import pack

AROUND = 5  # words on either side of what is written


def mapped(values: np.ndarray) -> np.ndarray:
    """A copy past the first 4 GiB, where a GPU's memory lies too: a lower address is an int32 to the interpreter."""
    copy = np.frombuffer(mmap.mmap(-1, values.nbytes), values.dtype)
    copy[:] = values
    return copy


def surrounded(words: int) -> np.ndarray:
    return mapped(np.full(words + 2 * AROUND, -77, np.int64))


def run(case: dict, random: np.random.Generator) -> None:
    groups, group_words, differs = case["groups"], case["record_words"] + 1, sorted(case["differs"])
    same = [position for position in range(group_words) if position not in differs]
    expected = np.empty((groups, group_words), np.int64)
    expected[:, same] = random.integers(-(2**63), 2**63, len(same))
    expected[:, differs] = random.integers(-(2**63), 2**63, (groups, len(differs)))
    words = mapped(np.concatenate([expected[0, same], expected[:, differs].ravel()]))

    ends, records = surrounded(groups), surrounded(groups * case["record_words"])
    grid = -(-groups * group_words // case["block"])
    mask = sum(1 << position for position in differs)
    pack[(grid,)](
        (0,), words.ctypes.data, ends.ctypes.data + 8 * AROUND, records.ctypes.data + 8 * AROUND,
        mask, groups, case["record_words"], BLOCK=case["block"], BY_VALUE=None,
    )  # fmt: skip
    np.testing.assert_array_equal(ends[AROUND:-AROUND], expected[:, 0], str(case))
    np.testing.assert_array_equal(records[AROUND:-AROUND], expected[:, 1:].ravel(), str(case))
    for memory in (ends, records):
        assert (memory[:AROUND] == -77).all() and (memory[-AROUND:] == -77).all(), f"written outside: {case}"


if __name__ == "__main__":
    generator = np.random.default_rng(1)
    for case in json.loads(sys.argv[1]):
        run(case, generator)
    print("equal")
