"""Runs `activation_gradient`, or `add_row_sums`, in Triton's interpreter: python interpreted_gradient.py CASES.

CASES is a JSON list; `check` and `check_row_sums` say what a case may hold: "tiles" are of the second. Inputs lie in
NaN, and so do outputs, whose surroundings must stay NaN. Prints "equal".
"""

import json
import sys

import numpy as np
from activation_formulas import GATED, limit_of, slopes
from interpreted_memory import ACTIVATIONS, BLOCK_M, BLOCK_N, GATE_ORDERS, address, ends_of, surrounded, tl

from aot.kernels.memory.activation_gradient import activation_gradient
from aot.kernels.memory.add_row_sums import add_row_sums

SCALE = np.float32(0.5)


def check(case: dict) -> None:
    """rows, columns (of dh), activation (or null), swiglu_limit, gate_order, aligned, step, ends, weights, slots,
    entries, keeps."""
    random = np.random.default_rng(1)
    rows, columns, name, step = case["rows"], case["columns"], case["activation"], case.get("step", 1)
    wide, keeps = columns * (2 if name in GATED else 1), case.get("keeps", True)
    (z, _), (dh, _) = surrounded(rows, wide, step, 8), surrounded(rows, columns, step, 8)
    z[...] = random.standard_normal(z.shape) * 4
    z[1] = np.resize([7, -7, 7.5, -7.5, 1, -1], wide)  # on the limits of swiglu_oai and past them
    limit = limit_of(name, case.get("swiglu_limit"))
    z[z == 0] = 0.25
    dh[...] = random.standard_normal(dh.shape)
    (dz, around_dz), (h, around_h) = surrounded(rows, wide, step, 8), surrounded(rows, columns, step, 8)
    slots, entries = np.array(case.get("slots", range(rows)), np.int32), case.get("entries", rows)
    weights = np.array(case.get("weights", [1]), np.float32)
    sums = np.full(entries + 2, np.nan, np.float32)
    ends, of_ends = ends_of(case)
    activation_gradient[(-(-rows // BLOCK_M),)](
        **address(z, "y"), **address(dh, "dh"), **address(dz, "out"), **address(h, "h") | ({} if keeps else {"h": 0}),
        **of_ends, rows=rows, columns=columns, entries=entries, weight_index=slots.ctypes.data, weight_kind=0,
        weights=weights.ctypes.data if "weights" in case else 0, dweights=sums[1:].ctypes.data if keeps else 0,
        activation=0 if name is None else ACTIVATIONS.index(name), gate_order=GATE_ORDERS.index(case["gate_order"]),
        limit_bits=int(np.float32(limit).view(np.int32)),
        factor_bits=int(SCALE.view(np.int32)), DTYPE=tl.float16, ALIGNED=case["aligned"], BLOCK_M=BLOCK_M,
        BLOCK_N=BLOCK_N,
    )  # fmt: skip
    written = min(rows, max(ends[-1], 0)) if "ends" in case else rows
    value, by_z = slopes(z, name, case["gate_order"], case.get("swiglu_limit"))
    known = (slots >= 0) & (slots < entries)
    factor = SCALE * (np.where(known, weights[np.where(known, slots, 0)], 0) if "weights" in case else np.ones(rows))
    gradient = dh.astype(np.float64)
    near = {"rtol": 2**-10, "atol": 4e-6}
    wanted = factor[:, None] * beside_itself(gradient, name, case["gate_order"]) * by_z
    np.testing.assert_allclose(dz[:written], wanted[:written], **near)
    assert np.isnan(around_dz).sum() == around_dz.size - written * wide, "written outside of dz"
    assert np.isnan(around_h).sum() == around_h.size - written * columns * keeps, "written outside of h"
    of_weights = np.full(entries + 2, np.nan)
    if keeps:
        np.testing.assert_allclose(h[:written], (factor[:, None] * value)[:written], **near)
        own = np.flatnonzero(known[:written])
        of_weights[1 + slots[own]] = SCALE * (value * gradient).sum(1)[own]
    np.testing.assert_allclose(sums, of_weights, rtol=2e-6, atol=1e-5)


def beside_itself(x: np.ndarray, activation: str | None, order: str) -> np.ndarray:
    """What comes in for gate and for up, as z has them."""
    if activation not in GATED:
        return x
    return np.repeat(x, 2, 1) if order == "interleaved" else np.concatenate([x, x], 1)


def check_row_sums(case: dict) -> None:
    """rows, tiles, slots, entries, ends."""
    rows, tiles, entries = case["rows"], case["tiles"], case["entries"]
    sums = np.random.default_rng(1).standard_normal((tiles, rows)).astype(np.float32)
    ends, of_ends = ends_of(case)
    written = min(rows, max(ends[-1], 0)) if "ends" in case else rows
    sums[:, written:] = np.nan
    slots, found = np.array(case["slots"], np.int32), np.full(entries + 2, np.nan, np.float32)
    add_row_sums[(-(-rows // BLOCK_M),)](
        y=sums.ctypes.data, weight_index=slots.ctypes.data, dweights=found[1:].ctypes.data, **of_ends, rows=rows,
        parts=tiles, entries=entries, factor_bits=int(SCALE.view(np.int32)), BLOCK_M=BLOCK_M,
    )  # fmt: skip
    wanted, total = np.full(entries + 2, np.nan, np.float32), np.zeros(rows, np.float32)
    for one in sums:
        total += one
    own = [row for row in range(written) if 0 <= slots[row] < entries]
    wanted[1 + slots[own]] = SCALE * total[own]
    np.testing.assert_array_equal(found, wanted)


if __name__ == "__main__":
    for case in json.loads(sys.argv[1]):
        (check_row_sums if "tiles" in case else check)(case)
    print("equal")
