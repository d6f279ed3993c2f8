"""grouped_mm of ragged columns, and of stacks with an activation by parts, up to the driver."""

import struct

import pytest

from embedded import KERNELS
from faults.fake_driver import SM_80
from faults.parameters import by_value, limit_bits, ragged_arguments, read_ragged
from faults.test_product_parts import NAMES, ORDERS, address_of, aligned

ACTIVATE = (
    "y", "y_row", "y_col", "out", "out_row", "out_col", "ends", "rows", "columns", "groups", "activation", "limit_bits",
    "gate_order",
    "y_group", "out_group", "counts", "group_rows",
)  # fmt: skip

COLUMNS = """
    import cupy
    mat_a = cupy.empty((3, 40, 64), "float16")
    mat_b, offs = cupy.empty(({depth}, 96), "float16", "{order}"), cupy.empty(3, "int32")
    out = cupy.empty((40, 96), "float16", "{out_order}") if "{out_order}" else None
    made = gg_runtime.grouped_mm(mat_a, mat_b, offs=offs, out=out)
    report([x.facts() for x in (mat_a, mat_b, offs, made)])
"""


def product_of(launch: dict) -> tuple:
    arguments = ragged_arguments(launch)
    return arguments, read_ragged(by_value(arguments, launch["symbol"]), launch["symbol"])


@pytest.mark.parametrize("out_order", ["", "n"])
@pytest.mark.parametrize("settings", [{}, SM_80], ids=["sm_90", "sm_80"])
def test_ragged_columns_are_the_transposed_product_of_ragged_rows(fake_cuda, out_order, settings):
    ran = fake_cuda.run(COLUMNS.format(depth=64, order="n", out_order=out_order), **settings)
    (launch,), ((a, b, offs, out),) = ran.launches, ran.reported
    arguments, words = product_of(launch)
    assert launch["symbol"] == "basic_ragged", "the output has rows that lie apart, of the transposed product"
    assert (arguments.groups, arguments.rows, arguments.columns, arguments.depth) == (3, 96, 40, 64)
    assert (words["a"], words["a_row"], words["a_col"]) == (b["address"], 1, 96)
    assert (words["b"], words["b_group"], words["b_row"], words["b_col"]) == (a["address"], 40 * 64, 1, 64)
    assert (words["c"], words["c_row"], words["c_col"]) == (out["address"], 1, 96)
    assert words["offs"] == offs["address"] and out["shape"] == [40, 96]


def test_a_column_major_output_of_ragged_columns_is_for_tma(fake_cuda):
    ran = fake_cuda.run(COLUMNS.format(depth=64, order="t", out_order="t"))
    (launch,), ((a, b, _, out),) = ran.launches, ran.reported
    _, words = product_of(launch)
    assert launch["symbol"] == "hopper_ragged"
    assert [address_of(words[name]) for name in "abc"] == [b["address"], a["address"], out["address"]]


STACK = """
    import cupy
    mat_a, mat_b = cupy.empty((3, 40, 64), "float16"), cupy.empty((3, 64, 48), "float16")
    bias, counts = cupy.empty((3, 48), "float16"), cupy.empty(3, "int32")
    before = len(cupy.allocations)
    made = gg_runtime._C.grouped_mm(mat_a, mat_b, bias=bias, activation="{activation}", gate_up="{order}",
                                    counts=counts if {masked} else None)
    report([x.facts() for x in (mat_a, mat_b, bias, counts, made)])
    report(cupy.allocations[before:])
"""


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("activation", "order"), [("swiglu", "gate_first"), ("geglu", "interleaved"), ("relu2", "gate_first")]
)
def test_stacks_are_activated_by_their_counts(fake_cuda, activation, order, masked):
    """sm_80 has no kernel that does both: the product is written, and read back up to the same counts."""
    ran = fake_cuda.run(STACK.format(activation=activation, order=order, masked=masked), **SM_80)
    (_, _, bias, counts, out), allocated = ran.reported
    product, activate = ran.launches
    assert (product["symbol"], activate["symbol"]) == ("basic_stack", "activate")
    _, words = product_of(product)
    gated = activation != "relu2"
    columns = 24 if gated else 48
    sums = aligned(allocated[1][0], 128) if gated else out["address"]
    assert out["shape"] == [3, 40, columns] and len(allocated) == 1 + gated
    assert (words["c"], words["c_group"], words["c_row"], words["bias"]) == (sums, 40 * 48, 48, bias["address"])
    assert words["counts"] == (counts["address"] if masked else 0)
    if gated:
        assert sums + 3 * 40 * 48 * 2 <= sum(allocated[1])
    found = dict(zip(ACTIVATE, struct.unpack_from("@QqqQqqQ6iqqQi", bytes.fromhex(activate["parameters"]))))
    assert found == {
        "y": sums, "y_row": 48, "y_col": 1, "out": out["address"], "out_row": columns, "out_col": 1, "ends": 0,
        "y_group": 40 * 48, "out_group": 40 * columns, "counts": counts["address"] if masked else 0, "rows": 120,
        "columns": columns, "groups": 0, "activation": NAMES.index(activation), "limit_bits": limit_bits(activation),
        "gate_order": ORDERS.index(order), "group_rows": 40,
    }  # fmt: skip
    kernel = next(k for k in KERNELS.values() if k["cubin_sha256"] == ran.hash_of(activate))
    assert activate["grid"] == [-(-120 // kernel["block_m"]) * -(-columns // kernel["block_n"]), 1, 1]
