"""Runs `basic_ragged` in Triton's interpreter and compares it exactly: python interpreted_ragged.py CASES.

CASES is a JSON list: layout, offs, rows, n, k, and where wanted ctas, aligned, bias, skips_rest, scales, which take
inputs of e4m3 to outputs of float32: true, or "row" or "block" for those of rows and columns or of blocks. Prints
"equal". Elements are small integers, so that any order of summation gives one answer. Whatever the kernel may not read
or must not write is NaN.
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
from triton.runtime.interpreter import TensorHandle

module = importlib.import_module("aot.kernels.pointer.basic_ragged")
module.SCAN_WINDOW = tl.constexpr(8)  # a scan is slow here, and so a few groups need several

BLOCKS = {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 16}
SCALE_A, STEP_OF_SCALE_B = 0.5, 2


def placed(values: np.ndarray, axes: tuple[int, ...], step: int = 1) -> np.ndarray:
    """The values as a view into NaN: `axes` from the outermost to the innermost, which has stride `step`."""
    turned = values.transpose(axes)
    around = np.full((*turned.shape[:-1], step * ((turned.shape[-1] + 7) // 8 * 8 + 8)), np.nan, values.dtype)
    view = around[..., : step * turned.shape[-1] : step]
    view[...] = turned
    return view.transpose(np.argsort(axes))


def scales_by(mode: str, case: dict, groups: int, random: np.random.Generator) -> tuple:
    """Scales of rows or blocks as views into NaN, and the factors of each element of A and of B."""
    rows, n, k = case["rows"], case["n"], case["k"]
    blocks = -(-k // 128), -(-n // 128)
    shapes = ((rows, 1), (groups, 1, n)) if mode == "row" else ((rows, blocks[0]), (groups, blocks[1], blocks[0]))
    of_a, of_b = (
        placed(2.0 ** random.integers(-1, 2, shape).astype(np.float32), range(len(shape)), 3) for shape in shapes
    )
    if mode == "row":
        return of_a, of_b, np.repeat(of_a, k, 1), np.repeat(of_b, k, 1)
    of_columns = np.repeat(of_b, 128, 1)[:, :n].transpose(0, 2, 1)
    return of_a, of_b, np.repeat(of_a, 128, 1)[:, :k], np.repeat(of_columns, 128, 1)[:, :k]


def expected(case: dict, a: np.ndarray, b: np.ndarray, bias: np.ndarray | None, scales: np.ndarray) -> np.ndarray:
    """Row by row what aot/kernels/pointer/basic_ragged.py makes of any `offs`."""
    result = np.zeros((case["rows"], case["n"]))
    begin = 0
    for group, end in enumerate(case["offs"]):
        end = min(max(end, begin), case["rows"])
        result[begin:end] = scales[group] * (a[begin:end] @ b[group])
        if bias is not None:
            result[begin:end] += bias[group]
        begin = end
    if case.get("skips_rest"):
        result[begin:] = np.nan  # as they were
    return result


def word(value: int) -> tl.tensor:
    return tl.tensor(TensorHandle(np.array([value], np.int64), tl.int64), tl.int64)


def strides(array: np.ndarray) -> list[int]:
    return [stride // array.itemsize for stride in array.strides]


def check(case: dict) -> None:
    random = np.random.default_rng(1)
    layout, groups, rows, n, k = case["layout"], len(case["offs"]), case["rows"], case["n"], case["k"]
    scaled, step = case.get("scales", False), 2 if layout == "strided" else 1
    mode = scaled if isinstance(scaled, str) else "tensor" if scaled else "none"
    out = np.float32 if scaled else np.float16
    drawn = [random.integers(-2, 3, shape) for shape in ((rows, k), (groups, k, n), (groups, n))]
    a = placed(drawn[0].astype(np.float16), (1, 0) if layout[0] == "t" else (0, 1), step)
    b = placed(drawn[1].astype(np.float16), (0, 2, 1) if layout in ("nt", "tt") else (0, 1, 2), step)
    bias = placed(drawn[2].astype(out), (0, 1), 2) if case.get("bias") else None
    scale_b = 2.0 ** random.integers(-1, 2, groups * STEP_OF_SCALE_B).astype(np.float32)
    scales = SCALE_A * scale_b[::STEP_OF_SCALE_B] if scaled else np.ones(groups)
    c_around = np.full((rows + 2, step * (n + 24) // 8 * 8), np.nan, out)
    c = c_around[1:-1, 8 : 8 + step * n : step]
    offs = np.array([rows, *case["offs"], rows], np.int32)  # ends on both sides that must not be taken for a group's
    scale_a = np.array([SCALE_A], np.float32)
    read_a, read_b = (as_e4m3(a), as_e4m3(b)) if scaled else (a, b)
    words = [array.ctypes.data for array in (read_a, read_b, c)] + strides(read_a) + strides(read_b) + strides(c)
    words += [offs.ctypes.data + 4, *([bias.ctypes.data, *strides(bias)] if bias is not None else [0, 0, 0])]
    words += [scale_a.ctypes.data, scale_b.ctypes.data, STEP_OF_SCALE_B] if scaled else [0, 0, 0]
    words += [int(case.get("skips_rest", False))]
    if mode in ("row", "block"):
        of_a, of_b, of_each_a, of_each_b = scales_by(mode, case, groups, random)
        drawn[0], drawn[1], scales = drawn[0] * of_each_a, drawn[1] * of_each_b, np.ones(groups)
        by_a, by_b = strides(of_a), strides(of_b)
        words[-4:-1] = [of_a.ctypes.data, of_b.ctypes.data, by_b[0]]
        words += [by_a[0], 0, by_b[2], 0] if mode == "row" else [by_a[0], by_a[1], by_b[1], by_b[2]]
    module.basic_ragged[(case.get("ctas", 3),)](
        tuple(map(word, words)), groups, rows, n, k,
        DTYPE=tl.float8e4nv if scaled else tl.float16, OUT=tl.float32 if scaled else tl.float16,
        LAYOUT=layout, ALIGNED=case.get("aligned", False), SCALING=mode, RASTER=2, **BLOCKS,
    )  # fmt: skip
    wanted = expected(case, drawn[0], drawn[1], drawn[2] if case.get("bias") else None, scales)
    np.testing.assert_array_equal(c, wanted)
    assert np.isnan(c_around).sum() == c_around.size - np.isfinite(wanted).sum(), "written outside of the output"


if __name__ == "__main__":
    for each in json.loads(sys.argv[1]):
        try:
            check(each)
        except Exception as error:
            raise AssertionError(f"on {each}") from error
    print("equal")
