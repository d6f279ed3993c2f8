"""Activations, gate orders and gathered rows: the kernels in Triton's interpreter, and the CPU path, by formulas."""

import re

import numpy as np
import pytest
from activation_formulas import CASES, GATED, formula
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreted import run_interpreted

import gg_runtime
from aot.spec.abi import ACTIVATIONS, GATE_ORDERS, GATED_ACTIVATIONS
from gg_runtime.reference import activations

try:
    import torch
except ImportError:
    torch = None

FRAMEWORKS = ["numpy"] + ["torch"] * (torch is not None)


def of(framework: str, values: np.ndarray):
    return values if framework == "numpy" else torch.from_numpy(values)


def interpret(kernel: str, *cases: dict) -> None:
    run_interpreted("memory", kernel, cases)


@pytest.mark.compiler
def test_kernels_number_the_activations_as_the_abi_does():
    from aot.kernels import activation as kernels

    assert [getattr(kernels, name.upper()).value for name in ACTIVATIONS[1:]] == list(range(1, len(ACTIVATIONS)))
    assert [getattr(kernels, name.upper()).value for name in GATE_ORDERS] == list(range(len(GATE_ORDERS)))
    assert ACTIVATIONS[1 : 1 + len(GATED_ACTIVATIONS)] == GATED_ACTIVATIONS == activations.GATED == GATED


@pytest.mark.compiler
@pytest.mark.parametrize("activation", ACTIVATIONS[1:])
def test_the_kernel_applies_every_activation(activation):
    orders = [order for known, order in CASES if known == activation]
    forms = ({"aligned": True, "columns": 40}, {"aligned": False, "columns": 19, "step": 2})
    interpret("activate", *({"rows": 6, "activation": activation, "gate_order": o, **f} for o in orders for f in forms))


@pytest.mark.compiler
@pytest.mark.parametrize("activation", ["swiglu", "swiglu_oai"])
def test_the_kernel_limits_gate_and_up(activation):
    case = {"rows": 6, "columns": 24, "activation": activation, "gate_order": "up_first", "aligned": True}
    interpret("activate", *({**case, "swiglu_limit": limit} for limit in (0.5, 10, 1e6)))


@pytest.mark.compiler
def test_the_kernel_leaves_rows_behind_the_last_end_alone():
    case = {"rows": 11, "columns": 24, "activation": "swiglu", "gate_order": "interleaved", "aligned": True}
    interpret("activate", *({**case, "ends": ends} for ends in ([2, 6], [0, 0], [3, 11], [4, 90])))


@pytest.mark.compiler
@pytest.mark.parametrize("activation", ["swiglu", "relu"])
def test_the_kernel_takes_stacks_and_leaves_rows_past_the_counts_alone(activation):
    stack = {"rows": 15, "group_rows": 5, "activation": activation}
    forms = ({"aligned": True, "columns": 24}, {"aligned": False, "columns": 19, "step": 2})
    counted = ({}, {"counts": [5, 0, 3]}, {"counts": [-7, 9, 2**31 - 1]})
    orders = GATE_ORDERS if activation == "swiglu" else GATE_ORDERS[:1]
    interpret("activate", *({**stack, **f, **c, "gate_order": o} for f in forms for c in counted for o in orders))


INDEX = [3, 0, -1, 4, 5, 2, 2, 2**31 - 1, -(2**31), 1, 4]


@pytest.mark.compiler
def test_the_kernel_gathers_rows_and_zeros_in_place_of_those_that_are_not_there():
    forms = (
        {"aligned": True, "columns": 40},
        {"aligned": False, "columns": 19},
        {"aligned": False, "columns": 5, "step": 3},
    )
    wide = [*INDEX, 2**40, -(2**62)]
    interpret("gather", *({"index": INDEX, "source_rows": 5, **form} for form in forms))
    interpret("gather", *({"index": wide, "index_type": "int64", "source_rows": 5, **form} for form in forms))
    interpret("gather", {"index": INDEX, "source_rows": 0, "aligned": True, "columns": 8})


@pytest.mark.compiler
def test_the_kernel_gathers_up_to_the_last_end_and_multiplies_rows():
    case = {"index": INDEX, "source_rows": 5, "aligned": True, "columns": 24}
    interpret("gather", *({**case, "ends": ends} for ends in ([2, 6], [0, 0], [3, 11], [4, 90])))
    slots = [2, 0, 1, -1, 3, 3, 1, 0, 2, -7, 1]
    interpret("gather", {**case, "weights": [0.5, 2, 4, -1], "slots": slots})


def operands(rows=9, columns=12, depth=10, groups=3):
    rng = np.random.default_rng(rows)
    a = rng.standard_normal((rows, depth)).astype(np.float16)
    b = rng.standard_normal((groups, depth, columns)).astype(np.float16)
    return a, b, rng.standard_normal((groups, columns)).astype(np.float16)


def sums_of(a, b, ends, index=None, bias=None) -> np.ndarray:
    """Row by row in float64."""
    rows = range(len(a)) if index is None else index.tolist()
    made = np.zeros((len(rows), b.shape[2]))
    for row, place in enumerate(rows):
        group = int(np.searchsorted(ends, row, side="right"))
        if group < len(ends):
            source = a[place] if 0 <= place < len(a) else 0 * a[0]
            made[row] = source.astype(np.float64) @ b[group].astype(np.float64)
            made[row] += 0 if bias is None else bias[group]
    return made


def test_gate_comes_first_where_no_order_is_passed():
    a, b, _ = operands()
    ends = np.array([4, 4, 7], np.int32)
    made = [
        gg_runtime.grouped_mm(a, b, offs=ends, activation="swiglu", **given)
        for given in ({}, {"gate_up": None}, {"gate_up": "gate_first"}, {"gate_up": "up_first"})
    ]
    assert all(np.array_equal(one, made[2]) for one in made[:2]) and not np.array_equal(made[2], made[3])


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(("activation", "order"), CASES)
def test_sums_are_activated_and_kept(framework, activation, order):
    a, b, bias = operands()
    a *= 3  # past the limits of swiglu_oai
    ends = np.array([4, 4, 7], np.int32)
    kept = np.full((9, 12), np.nan, np.float16)
    output = gg_runtime.grouped_mm(
        *(of(framework, x) for x in (a, b)), offs=of(framework, ends), bias=of(framework, bias),
        activation=activation, gate_up=order, preactivation=of(framework, kept),
    )  # fmt: skip
    sums = sums_of(a, b, ends, bias=bias)
    wanted = formula(sums, activation, order)
    assert tuple(output.shape) == wanted.shape and not np.asarray(output)[7:].any() and not kept[7:].any()
    np.testing.assert_allclose(np.asarray(output).astype(np.float64), wanted, rtol=2**-10, atol=2e-5)
    np.testing.assert_allclose(kept.astype(np.float64), sums, rtol=2**-10, atol=2e-5)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("limit", [0.5, 10, np.float32(2.5), float("inf")])
@pytest.mark.parametrize("activation", ["swiglu", "swiglu_oai"])
def test_gate_and_up_are_limited(framework, activation, limit):
    a, b, bias = operands()
    a *= 6
    ends = np.array([4, 4, 7], np.int32)
    arrays = [of(framework, x) for x in (a, b)]
    given = {"offs": of(framework, ends), "bias": of(framework, bias), "activation": activation, "swiglu_limit": limit}
    output = gg_runtime.grouped_mm(*arrays, **given)
    wanted = formula(sums_of(a, b, ends, bias=bias), activation, swiglu_limit=float(limit))
    np.testing.assert_allclose(np.asarray(output).astype(np.float64), wanted, rtol=2**-10, atol=2e-5)
    np.testing.assert_array_equal(np.asarray(gg_runtime.Plan(*arrays, **given).run()), np.asarray(output))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_limit_keeps_nan(framework):
    a, b, _ = operands()
    a[0] = np.nan
    output = gg_runtime.grouped_mm(
        of(framework, a), of(framework, b), offs=of(framework, np.array([9, 9, 9], np.int32)), activation="swiglu",
        swiglu_limit=1,
    )  # fmt: skip
    assert np.isnan(np.asarray(output)[0]).all() and np.isfinite(np.asarray(output)[1:]).all()


@pytest.mark.parametrize(
    ("activation", "limit", "kind", "words"),
    [
        ("geglu", 10, ValueError, "activation='swiglu' and 'swiglu_oai', and the activation is 'geglu'"),
        ("relu", 10, ValueError, "the activation is 'relu'; leave it out"),
        (None, 10, ValueError, "the activation is None; leave it out"),
        ("swiglu", 0, ValueError, "is 0, and gate and up need a limit above 0"),
        ("swiglu", -1.5, ValueError, "is -1.5, and gate and up need a limit above 0; pass float('inf') for none"),
        ("swiglu", float("nan"), ValueError, "is nan, and gate and up"),
        ("swiglu_oai", 1e-60, ValueError, "is 1e-60, and gate and up"),
        ("swiglu", 1e39, ValueError, "is beyond what a float32 holds"),
        ("swiglu", "10", TypeError, "is a str; a number is needed"),
    ],
)  # fmt: skip
def test_a_limit_that_means_nothing_is_refused(activation, limit, kind, words):
    a, b, _ = operands()
    with pytest.raises(kind, match=f"^grouped_mm: swiglu_limit .*{re.escape(words)}"):
        gg_runtime.grouped_mm(a, b, offs=np.array([4, 4, 7], np.int32), activation=activation, swiglu_limit=limit)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@settings(max_examples=40, deadline=None)
@given(data=st.data(), rows=st.integers(0, 12), source_rows=st.integers(0, 6), wide=st.booleans())
def test_rows_are_picked_by_the_index(framework, data, rows, source_rows, wide):
    reach = 2**62 if wide else 2**31 - 1
    numbers = st.one_of(st.integers(-2, 8), st.integers(-reach, reach))
    index = np.array(data.draw(st.lists(numbers, min_size=rows, max_size=rows)), np.int64 if wide else np.int32)
    a, b, _ = operands(rows=source_rows)
    ends = np.minimum([2, 5, 9], rows).astype(np.int32)
    output = gg_runtime.grouped_mm(
        *(of(framework, x) for x in (a, b)), offs=of(framework, ends), a_index=of(framework, index)
    )
    assert tuple(output.shape) == (rows, 12)
    wanted = sums_of(a if source_rows else np.zeros((1, 10)), b, ends, index if source_rows else index * 0 - 1)
    np.testing.assert_allclose(np.asarray(output).astype(np.float64), wanted, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_nan_in_rows_that_nobody_asked_for_stays_out(framework):
    a, b, _ = operands()
    a[[1, 3]] = np.nan
    index = np.array([0, 2, 4, -1, 9, 8], np.int32)
    ends = np.array([2, 4, 6], np.int32)
    given = [of(framework, x) for x in (a, b)]
    output = gg_runtime.grouped_mm(*given, offs=of(framework, ends), a_index=of(framework, index), activation="geglu")
    assert np.isfinite(np.asarray(output)).all() and not np.asarray(output)[3:5].any()


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("activation", ACTIVATIONS[1:])
def test_nan_that_was_asked_for_stays(framework, activation):
    a, b, _ = operands()
    a[0] = np.nan
    output = gg_runtime.grouped_mm(
        of(framework, a), of(framework, b), offs=of(framework, np.array([9, 9, 9], np.int32)), activation=activation
    )
    assert np.isnan(np.asarray(output)[0]).all() and np.isfinite(np.asarray(output)[1:]).all()


def test_a_plan_on_the_cpu_takes_the_same_arguments():
    a, b, bias = operands()
    index = np.array([3, 1, -1, 8], np.int64)
    ends = np.array([1, 3, 4], np.int32)
    kept, later = np.zeros((4, 12), np.float16), np.zeros((4, 12), np.float16)
    arguments = {"offs": ends, "bias": bias, "a_index": index, "activation": "swiglu_oai", "gate_up": "interleaved"}
    plan = gg_runtime.Plan(a, b, preactivation=kept, **arguments)
    index[0] = 5
    np.testing.assert_array_equal(plan.run(), gg_runtime.grouped_mm(a, b, preactivation=later, **arguments))
    np.testing.assert_array_equal(kept, later)


@pytest.mark.parametrize("name", ["a_index", "activation", "swiglu_limit", "preactivation"])
def test_a_plan_of_lists_takes_none_of_them(name):
    with pytest.raises(ValueError, match=f"Plan: {name} goes with arrays"):
        gg_runtime.Plan([np.zeros((2, 2), np.float16)], [np.zeros((2, 2), np.float16)], **{name: "swiglu"})
