"""Runs `basic_gated` in Triton's interpreter: python interpreted_gated.py CASES.

CASES is a JSON list: layout, order, activation, offs, rows, n (of B: twice the output's columns), k, and where wanted
ctas, bias, index (a list, or "any" for random integers of which half are rows), index_type, a_rows, skips_rest. Prints
"equal". Elements are small integers, so that the sums are exact; the activation is compared within one rounding.
Whatever the kernel may not read or must not write is NaN.
"""

import importlib
import json
import os
import sys
from pathlib import Path

import numpy as np
from activation_formulas import formula, limit_of

os.environ["TRITON_INTERPRET"] = "1"
sys.path.insert(0, str(Path(__file__).parents[2]))

import triton.language as tl
from interpreted_ragged import placed, strides, word

from aot.spec.abi import ACTIVATIONS
from aot.spec.records import GATED_POINTERS

module = importlib.import_module("aot.kernels.pointer.basic_gated")
module.SCAN_WINDOW = tl.constexpr(8)  # a scan is slow here, and so a few groups need several

BLOCKS = {"BLOCK_M": 16, "BLOCK_N": 32, "BLOCK_K": 16}
BIAS_STEP = 3  # between a row's biases


def index_of(case: dict, random: np.random.Generator) -> np.ndarray | None:
    given, dtype = case.get("index"), case.get("index_type", "int32")
    if given != "any":
        return None if given is None else np.array(given, dtype)
    limits = np.iinfo(dtype)
    index = random.integers(limits.min, limits.max, case["rows"], dtype, endpoint=True)
    index[::2] = random.integers(-2, case["a_rows"] + 2, index[::2].shape)
    index[:2] = limits.min, limits.max
    return index


def gathered(a: np.ndarray, index: np.ndarray | None) -> np.ndarray:
    if index is None:
        return a
    exists = (index >= 0) & (index < len(a))
    rows = np.zeros((len(index), a.shape[1]), a.dtype)
    rows[exists] = a[index[exists]]
    return rows


def expected(case: dict, rows_of_a: np.ndarray, b: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
    """Row by row what the kernel makes of any `offs`; NaN in rows that it leaves alone."""
    sums = np.zeros((case["rows"], case["n"]))
    begin = 0
    for group, end in enumerate(case["offs"]):
        end = min(max(end, begin), case["rows"])
        sums[begin:end] = rows_of_a[begin:end] @ b[group] + (0 if bias is None else bias[group])
        begin = end
    values = formula(sums, case["activation"], case["order"], case.get("swiglu_limit"))
    values[begin:] = np.nan if case.get("skips_rest") else 0
    return values


def columns_of(order: str, n: int) -> tuple[int, int, int]:
    """The column of gate's and of up's first, and how far each is from the next of its own."""
    return {"gate_first": (0, n // 2, 1), "up_first": (n // 2, 0, 1), "interleaved": (0, 1, 2)}[order]


def check(case: dict) -> None:
    random = np.random.default_rng(len(case["offs"]))
    groups, rows, n, k = len(case["offs"]), case["rows"], case["n"], case["k"]
    index = index_of(case, random)
    a_rows = case["a_rows"] if index is not None else rows
    drawn = [random.integers(-2, 3, shape) for shape in ((a_rows, k), (groups, k, n), (groups, n))]
    a = placed(drawn[0].astype(np.float16), (0, 1))
    b = placed(drawn[1].astype(np.float16), (0, 2, 1) if case["layout"] == "nt" else (0, 1, 2))
    bias = placed(drawn[2].astype(np.float16), (0, 1), BIAS_STEP) if case.get("bias") else None
    c_around = np.full((rows + 2, (n // 2 + 24) // 8 * 8), np.nan, np.float16)
    c = c_around[1:-1, 8 : 8 + n // 2]
    offs = np.array([rows, *case["offs"], rows], np.int32)  # ends on both sides that must not be taken for a group's
    # Integers on both sides of the index that would be rows.
    around_index = None if index is None else np.array([0, *index, 0], index.dtype)
    gate, up, step = columns_of(case["order"], n)
    b_group, b_row, b_col = strides(b)
    record = dict.fromkeys(GATED_POINTERS.word_offsets(), 0)
    record |= {"a": a.ctypes.data, "c": c.ctypes.data, "offs": offs.ctypes.data + 4}
    record |= {"b": b.ctypes.data + 2 * gate * b_col, "b_up": b.ctypes.data + 2 * up * b_col}
    record |= {"b_group": b_group, "b_row": b_row, "b_col": step * b_col}
    record |= dict(zip(("a_row", "a_col", "c_row", "c_col"), (*strides(a), *strides(c))))
    if bias is not None:
        first, bias_row = bias.ctypes.data, strides(bias)[0]
        record |= {"bias": first + 2 * gate * BIAS_STEP, "bias_up": first + 2 * up * BIAS_STEP}
        record |= {"bias_row": bias_row, "bias_col": step * BIAS_STEP}
    if around_index is not None:
        record |= {"index": around_index.ctypes.data + index.itemsize, "index_bytes": index.itemsize}
    record |= {"a_rows": a_rows, "up_first": case["order"] == "up_first", "skips_rest": bool(case.get("skips_rest"))}
    limit = np.float32(limit_of(case["activation"], case.get("swiglu_limit")))
    record["activation"] = ACTIVATIONS.index(case["activation"]) | int(limit.view(np.int32)) << 32
    module.basic_gated[(case.get("ctas", 3),)](
        tuple(word(int(value)) for value in record.values()), groups, rows, n, k,
        DTYPE=tl.float16, OUT=tl.float16, LAYOUT=case["layout"], RASTER=2, **BLOCKS,
    )  # fmt: skip
    wanted = expected(case, gathered(drawn[0], index), drawn[1], drawn[2] if bias is not None else None)
    np.testing.assert_allclose(c.astype(np.float64), wanted, rtol=2**-10, atol=2e-6)
    written = np.isfinite(wanted).sum()
    assert np.isnan(c_around).sum() == c_around.size - written, "written outside of the output"


if __name__ == "__main__":
    for each in json.loads(sys.argv[1]):
        try:
            check(each)
        except Exception as error:
            raise AssertionError(f"on {each}") from error
    print("equal")
