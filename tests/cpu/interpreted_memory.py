"""Runs `gather`, `activate` or `add_parts` in Triton's interpreter: python interpreted_memory.py KERNEL CASE.

CASE is JSON; the functions below say what it may hold. Inputs lie in NaN, and so do outputs, whose surroundings must
stay NaN. Prints "equal".
"""

import importlib
import json
import os
import sys
from pathlib import Path

import numpy as np
from activation_formulas import GATED, formula, limit_of

os.environ["TRITON_INTERPRET"] = "1"
sys.path.insert(0, str(Path(__file__).parents[2]))

import triton.language as tl

from aot.spec.abi import ACTIVATIONS, GATE_ORDERS

BLOCK_M, BLOCK_N = 4, 16


def surrounded(rows: int, columns: int, step: int, pad: int) -> tuple[np.ndarray, np.ndarray]:
    """A view of float16, and the NaN that it lies in: a row before and behind, `pad` columns behind each row."""
    around = np.full((rows + 2, columns * step + pad), np.nan, np.float16)
    offset = -around.ctypes.data // 2 % 8  # on 16 bytes
    around = np.full(around.size + 8, np.nan, np.float16)[offset : offset + around.size].reshape(around.shape)
    return around[1:-1, : columns * step : step], around


def run(name: str, rows: int, columns: int, aligned: bool, arguments: dict) -> None:
    kernel = getattr(importlib.import_module(f"aot.kernels.memory.{name}"), name)
    grid = -(-rows // BLOCK_M) * -(-columns // BLOCK_N)
    options = {"DTYPE": tl.float16, "ALIGNED": aligned, "BLOCK_M": BLOCK_M, "BLOCK_N": BLOCK_N}
    kernel[(grid,)](**arguments, rows=rows, columns=columns, **options)


def ends_of(case: dict) -> tuple[np.ndarray, dict]:
    ends = np.array(case.get("ends", [0]), np.int32)
    return ends, {"ends": ends.ctypes.data if "ends" in case else 0, "groups": len(ends)}


def address(array: np.ndarray, name: str) -> dict:
    row, column = (stride // array.itemsize for stride in array.strides)
    return {name: array.ctypes.data, f"{name}_row": row, f"{name}_col": column}


def gather(case: dict) -> None:
    """index, columns, source_rows, aligned, step (of the source's columns), index_type, ends, weights."""
    random = np.random.default_rng(1)
    source, _ = surrounded(case["source_rows"], case["columns"], case.get("step", 1), 8)
    source[...] = random.integers(-4, 5, source.shape)
    index = np.array(case["index"], case.get("index_type", "int32"))
    out, around = surrounded(len(index), case["columns"], 1, 8)
    weights = np.array(case.get("weights", [1]), np.float32)
    slots = np.array(case.get("slots", [0]), np.int32)
    ends, of_ends = ends_of(case)
    to = address(out, "out")
    del to["out_col"]
    run("gather", len(index), case["columns"], case["aligned"], {
        **address(source, "y"), **to, **of_ends, "index": index.ctypes.data, "index_bytes": index.itemsize,
        "source_rows": case["source_rows"], "weights": weights.ctypes.data if "weights" in case else 0,
        "weight_index": slots.ctypes.data, "weight_kind": 0,
    })  # fmt: skip
    written = min(len(index), ends[-1]) if "ends" in case else len(index)
    for row, place in enumerate(case["index"][:written]):
        factor = 1 if "weights" not in case else weights[slots[row]] if slots[row] >= 0 else 0
        inside = 0 <= place < case["source_rows"]
        np.testing.assert_array_equal(out[row], factor * source[place] if inside else 0)
    assert np.isnan(around).sum() == around.size - written * case["columns"], "written outside of the output"


def activate(case: dict) -> None:
    """rows, columns (of the output), activation, swiglu_limit, gate_order, aligned, step, ends; of a stack group_rows
    and counts."""
    random = np.random.default_rng(1)
    rows, columns, name = case["rows"], case["columns"], case["activation"]
    of_group, counts = case.get("group_rows", 0), np.array(case.get("counts", [0]), np.int32)
    gap = 2 if of_group else 0  # rows between the matrices of a stack
    apart = of_group + gap
    lines = rows + gap * (rows // of_group if of_group else 0)
    z, _ = surrounded(lines, columns * (2 if name in GATED else 1), case.get("step", 1), 8)
    z[...] = random.standard_normal(z.shape) * 4
    z[0, :2] = 20, -20
    wanted = formula(z, name, case["gate_order"], case.get("swiglu_limit"))
    out, around = surrounded(lines, columns, case.get("step", 1), 8)
    ends, of_ends = ends_of(case)
    y, to = address(z, "y"), address(out, "out")
    run("activate", rows, columns, case["aligned"], {
        **y, **to, **of_ends, "y_group": apart * y["y_row"], "out_group": apart * to["out_row"],
        "group_rows": of_group, "counts": counts.ctypes.data if "counts" in case else 0,
        "activation": ACTIVATIONS.index(name), "gate_order": GATE_ORDERS.index(case["gate_order"]),
        "limit_bits": int(np.float32(limit_of(name, case.get("swiglu_limit"))).view(np.int32)),
    })  # fmt: skip
    line = np.arange(lines)
    written = line < (min(rows, ends[-1]) if "ends" in case else lines)
    if of_group:
        kept = counts if "counts" in case else np.full(rows // of_group, of_group)
        written = line % apart < np.clip(kept, 0, of_group)[line // apart]
    np.testing.assert_allclose(out[written].astype(np.float64), wanted[written], rtol=2**-10, atol=2e-6)
    assert np.isnan(around).sum() == around.size - written.sum() * columns, "written outside of the output"


def in_order(y: np.ndarray, alpha: np.float32, beta: np.float32, had: np.ndarray) -> np.ndarray:
    """What `add_parts` makes of float32 sums, addition by addition; products and sums may be fused, or not."""
    sums = y[:, 0].copy()
    for part in range(1, y.shape[1]):
        sums += y[:, part]
    return (alpha * sums + (beta * had.astype(np.float32) if beta != 0 else np.float32(0))).astype(had.dtype)


def add_parts(case: dict) -> None:
    """groups, parts, rows, columns, out (a dtype), step (of the output's columns), alpha, beta, on_device, aligned."""
    random = np.random.default_rng(1)
    groups, parts, rows, columns = (case[name] for name in ("groups", "parts", "rows", "columns"))
    out_type, step = np.dtype(case.get("out", "float16")), case.get("step", 1)
    y_around = np.full((groups * parts * rows, columns + 8), np.nan, np.float32)
    y = y_around[:, :columns].reshape(groups, parts, rows, columns)
    y = np.lib.stride_tricks.as_strided(
        y_around, y.shape, [y_around.strides[0] * n for n in (parts * rows, rows, 1)] + [4]
    )
    y[...] = random.integers(-64, 65, y.shape) / 8  # of float32 sums nothing is rounded
    around = np.full((groups + 2, rows + 3, step * columns + 16), np.nan, out_type)
    out = around[1:-1, 1 : rows + 1, 8 : 8 + step * columns : step]
    factors = np.array([case.get("alpha", 1), case.get("beta", 0)], np.float32)
    if factors[1] != 0:  # else it stays NaN, and is not to be read
        out[...] = random.integers(-4, 5, out.shape)
    wanted = in_order(y, *factors, out)
    places = [0, 0] if not case.get("on_device") else [factors[i:].ctypes.data for i in range(2)]
    bits = [7, 7] if case.get("on_device") else factors.view(np.int32).tolist()
    kernel = importlib.import_module("aot.kernels.memory.add_parts").add_parts
    kernel[(-(-groups * rows // BLOCK_M) * -(-columns // BLOCK_N),)](
        y=y.ctypes.data, y_row=columns + 8, out=out.ctypes.data, rows=rows, columns=columns, groups=groups, parts=parts,
        **{f"out_{name}": stride // out.itemsize for name, stride in zip(("group", "row", "col"), out.strides)},
        alpha_at=places[0], beta_at=places[1], alpha_bits=bits[0], beta_bits=bits[1],
        DTYPE=tl.float32 if out_type == np.float32 else tl.float16, ALIGNED=case.get("aligned", False),
        BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N,
    )  # fmt: skip
    np.testing.assert_array_equal(out, wanted)
    assert np.isnan(around).sum() == around.size - out.size, "written outside of the output"


if __name__ == "__main__":
    for case in json.loads(sys.argv[2]):
        {"gather": gather, "activate": activate, "add_parts": add_parts}[sys.argv[1]](case)
    print("equal")
