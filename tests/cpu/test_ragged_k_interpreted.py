"""The logic of `basic_ragged_k` and `add_parts`, in Triton's interpreter: ends, garbage, strides, splits, exactly."""

import pytest
from interpreted import run_interpreted

pytestmark = pytest.mark.compiler
PLAIN = {"layout": "tn", "offs": [20, 41, 60], "total": 60, "m": 21, "n": 19}


def interpret(*cases: dict) -> None:
    """Each case is a change of PLAIN."""
    run_interpreted("ragged_k", [PLAIN | case for case in cases])


def add_parts(*cases: dict) -> None:
    run_interpreted("memory", "add_parts", cases)


def test_every_layout_and_both_outputs():
    layouts = ("nn", "nt", "tn", "tt", "strided")
    interpret(*({"layout": layout, "out": out} for layout in layouts for out in ("float16", "float32")))


def test_its_aligned_guarantees_hold_whatever_the_ends():
    sizes = ({"m": 24, "n": 40}, {"m": 8, "n": 8}, {"m": 40, "n": 16, "out": "float32"})
    splits = ([20, 41, 60], [1, 2, 59], [16, 32, 48])
    interpret(*(size | {"offs": offs, "aligned": True} for size in sizes for offs in splits))


def test_uneven_groups_and_empty_ones_at_every_place():
    splits = ([0, 17, 60], [23, 23, 60], [33, 60, 60], [0, 0, 60], [60, 60, 60], [1, 2, 60], [59, 59, 60], [60])
    interpret(*({"offs": offs} for offs in splits), {"offs": [0, 0, 0]}, {"offs": [0, 0], "total": 0})


def test_what_lies_past_the_last_end_enters_no_sum():
    interpret(*({"offs": offs} for offs in ([10, 20, 41], [1, 1, 1], [16, 32, 48], [0, 0, 1])))


def test_garbage_in_offs_has_a_defined_result():
    low, high = -(2**31), 2**31 - 1
    splits = ([-5, 30, 60], [40, 20, 60], [30, 10, 20], [90, 95, 99], [20, 999, 60], [high, low, high], [low, low, low])
    interpret(*({"offs": offs, "splits": parts} for offs in splits for parts in (1, 2)))


@pytest.mark.parametrize("groups", [7, 8, 9, 16, 30])
def test_groups_beyond_the_first_that_are_looked_at_together(groups):
    """The script looks at 8 at a time."""
    offs = [2 * g + g % 3 for g in range(1, groups + 1)]
    garbage = [-1 if g % 4 == 2 else end for g, end in enumerate(offs)]
    small = {"m": 3, "n": 18, "total": max(offs) + 20}
    interpret(*(small | {"offs": each, "ctas": ctas} for each in (offs, garbage) for ctas in (5, 1, 100)))


@pytest.mark.parametrize("splits", [2, 3, 5])
def test_a_groups_k_is_cut_at_multiples_of_64_from_its_start(splits):
    """Parts that no K is left for are zeros."""
    offs = [1, 1, 64, 66, 200, 333]
    form = {"offs": offs, "total": 340, "splits": splits, "m": 17, "n": 5}
    interpret(*(form | {"layout": layout, "out": "float32"} for layout in ("tn", "strided")), form | {"ctas": 50})


def test_alpha_is_a_number_or_lies_on_the_device():
    interpret(*({"alpha": alpha, "on_device": there} for alpha in (0.5, -2, 0) for there in (False, True)))


@pytest.mark.parametrize("ctas", [1, 2, 7, 100])
def test_every_tile_is_computed_once_whatever_the_grid(ctas):
    interpret({"m": 70, "n": 50, "ctas": ctas}, {"m": 35, "n": 20, "ctas": ctas, "splits": 2})


def test_nothing_to_sum_and_nothing_to_write():
    interpret({"total": 0}, {"m": 0}, {"n": 0}, {"offs": []})


FORM = {"groups": 3, "parts": 2, "rows": 5, "columns": 24}


def test_parts_are_added_in_order_and_rounded_once():
    forms = ({}, {"parts": 1}, {"parts": 5, "rows": 1}, {"columns": 7}, {"groups": 1, "rows": 9}, {"columns": 40})
    outs = ("float16", "float32")
    add_parts(*(FORM | form | {"out": out, "step": step} for form in forms for out in outs for step in (1, 2)))
    add_parts(*(FORM | {"aligned": True, "out": out, "columns": columns} for out in outs for columns in (8, 24)))


def test_factors_are_numbers_or_lie_on_the_device():
    factors = ((0.5, 0), (1, 1), (-2, 0.25), (0, 3), (3, -0.0))
    forms = [FORM | {"alpha": alpha, "beta": beta} for alpha, beta in factors]
    add_parts(*(form | {"on_device": there, "aligned": there} for form in forms for there in (False, True)))
