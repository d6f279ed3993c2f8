"""Runs `basic_stack` in Triton's interpreter and compares it exactly: python interpreted_stack.py CASES.

CASES is a JSON list: layout, groups, m, n, k, and where wanted counts (a list; without, all rows matter), ctas,
aligned, bias, shared_a, shared_b (one matrix for all groups), scales ("tensor", "row" or "block"), which take inputs of
e4m3 to outputs of float32. Prints "equal". Elements are small integers, so that any order of summation gives one
answer. Whatever the kernel may not read or must not write is NaN: rows past a group's count and their scales too.
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
from e4m3 import as_e4m3
from interpreted_ragged import placed, strides, word

from aot.spec.records import SCALED_STACK_POINTERS, STACK_POINTERS

module = importlib.import_module("aot.kernels.pointer.basic_stack")
module.SCAN_WINDOW = tl.constexpr(8)  # a scan is slow here, and so a few groups need several

BLOCKS = {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 16}


def counts_of(case: dict) -> list[int]:
    """How many rows of each group matter, whatever is stated."""
    stated = case.get("counts") or [case["m"]] * case["groups"]
    return [min(max(count, 0), case["m"]) for count in stated]


def expected(case: dict, a: np.ndarray, b: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
    result = np.full((case["groups"], case["m"], case["n"]), np.nan)
    for group, count in enumerate(counts_of(case)):
        result[group, :count] = a[group, :count] @ b[group]
        if bias is not None:
            result[group, :count] += bias[group]
    return result


def stack(random: np.random.Generator, shape: tuple, turned: bool, step: int, shared: bool) -> np.ndarray:
    """Small integers as a view into NaN; `turned`: with the rows contiguous. `shared`: one matrix for all groups."""
    drawn = random.integers(-2, 3, (1, *shape[1:]) if shared else shape).astype(np.float16)
    view = placed(drawn, (0, 2, 1) if turned else (0, 1, 2), step)
    return np.lib.stride_tricks.as_strided(view, shape, (0, *view.strides[1:])) if shared else view


def scales_of(case: dict, random: np.random.Generator) -> tuple:
    """Scales as views into NaN, and the factors of each element of A and of B."""
    mode, groups, m, n, k = (case[name] for name in ("scales", "groups", "m", "n", "k"))
    blocks = -(-k // 128), -(-n // 128)
    shapes = {
        "tensor": ((1,), (groups,)),
        "row": ((groups, m), (groups, n)),
        "block": ((groups, m, blocks[0]), (groups, blocks[1], blocks[0])),
    }[mode]
    of_a, of_b = (
        placed(2.0 ** random.integers(-1, 2, shape).astype(np.float32), range(len(shape)), 3) for shape in shapes
    )
    kept_a = of_a.copy()
    if mode != "tensor":
        for group, count in enumerate(counts_of(case)):
            of_a[group, count:] = np.nan
    if mode == "tensor":
        return of_a, of_b, kept_a[0], of_b[:, None, None]
    if mode == "row":
        return of_a, of_b, kept_a[:, :, None], of_b[:, None, :]
    of_columns = np.repeat(of_b, 128, 1)[:, :n].transpose(0, 2, 1)
    return of_a, of_b, np.repeat(kept_a, 128, 2)[:, :, :k], np.repeat(of_columns, 128, 1)[:, :k]


def scale_fields(mode: str, of_a: np.ndarray, of_b: np.ndarray) -> dict:
    by_a, by_b = strides(of_a), strides(of_b)
    fields = {"scale_a": of_a.ctypes.data, "scale_b": of_b.ctypes.data, "scale_b_step": by_b[0]}
    if mode == "tensor":
        return fields
    fields |= {"scale_a_group": by_a[0], "scale_a_row": by_a[1], "scale_b_n": by_b[1]}
    return fields if mode == "row" else fields | {"scale_a_k": by_a[2], "scale_b_k": by_b[2]}


def check(case: dict) -> None:
    random = np.random.default_rng(1)
    layout, groups, m, n, k = (case[name] for name in ("layout", "groups", "m", "n", "k"))
    step, mode = 2 if layout == "strided" else 1, case.get("scales", "none")
    out = np.float16 if mode == "none" else np.float32
    a = stack(random, (groups, m, k), layout[0] == "t", step, case.get("shared_a", False))
    b = stack(random, (groups, k, n), layout in ("nt", "tt"), step, case.get("shared_b", False))
    if not case.get("shared_a"):
        for group, count in enumerate(counts_of(case)):
            a[group, count:] = np.nan
    bias = placed(random.integers(-2, 3, (groups, n)).astype(out), (0, 1), 2) if case.get("bias") else None
    c_around = np.full((groups, m + 2, step * (n + 24) // 8 * 8), np.nan, out)
    c = c_around[:, 1:-1, 8 : 8 + step * n : step]
    of_a, of_b, each_a, each_b = scales_of(case, random) if mode != "none" else (None, None, 1, 1)
    wanted = expected(case, a.astype(np.float64) * each_a, b.astype(np.float64) * each_b, bias)
    read_a, read_b = (a, b) if mode == "none" else (as_e4m3(a), as_e4m3(b))
    stated = case.get("counts")
    counts = None if stated is None else np.array([m, *stated, m], np.int32)  # more that are not to be taken for some
    layout_of_record = SCALED_STACK_POINTERS if mode in ("row", "block") else STACK_POINTERS
    record = dict.fromkeys(layout_of_record.word_offsets(), 0)
    record |= {"a": read_a.ctypes.data, "b": read_b.ctypes.data, "c": c.ctypes.data}
    for name, array in (("a", read_a), ("b", read_b), ("c", c)):
        record |= dict(zip((f"{name}_group", f"{name}_row", f"{name}_col"), strides(array)))
    if bias is not None:
        record |= dict(zip(("bias", "bias_row", "bias_col"), (bias.ctypes.data, *strides(bias))))
    if counts is not None:
        record["counts"] = counts.ctypes.data + 4
    if mode != "none":
        record |= scale_fields(mode, of_a, of_b)
    module.basic_stack[(case.get("ctas", 3),)](
        tuple(word(value) for value in record.values()), groups, m, n, k,
        DTYPE=tl.float16 if mode == "none" else tl.float8e4nv, OUT=tl.float16 if mode == "none" else tl.float32,
        LAYOUT=layout, ALIGNED=case.get("aligned", False), SCALING=mode, RASTER=2, **BLOCKS,
    )  # fmt: skip
    np.testing.assert_array_equal(c, wanted)
    assert np.isnan(c_around).sum() == c_around.size - np.isfinite(wanted).sum(), "written outside of the output"


if __name__ == "__main__":
    for each in json.loads(sys.argv[1]):
        try:
            check(each)
        except Exception as error:
            raise AssertionError(f"on {each}") from error
    print("equal")
