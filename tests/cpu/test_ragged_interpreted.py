"""The logic of `basic_ragged`, in Triton's interpreter: splits, garbage and strides, exactly."""

import pytest
from interpreted import run_interpreted

pytestmark = pytest.mark.compiler
PLAIN = {"layout": "nt", "offs": [20, 40, 60], "rows": 60, "n": 21, "k": 19}


def interpret(*cases: dict) -> None:
    """Each case is a change of PLAIN."""
    run_interpreted("ragged", [PLAIN | case for case in cases])


def test_every_layout_with_and_without_bias():
    layouts = ("nn", "nt", "tn", "tt", "strided")
    interpret(*({"layout": layout, "bias": bias} for layout in layouts for bias in (False, True)))


def test_its_aligned_guarantees():
    sizes = ({"n": 24, "k": 40}, {"n": 8, "k": 8}, {"n": 40, "k": 16, "bias": True})
    interpret(*(size | {"layout": layout, "aligned": True} for layout in ("nn", "nt") for size in sizes))


def test_uneven_groups_and_empty_ones_at_every_place():
    splits = ([0, 17, 60], [23, 23, 60], [33, 60, 60], [0, 0, 60], [60, 60, 60], [1, 2, 60], [59, 59, 60], [60])
    interpret(*({"offs": offs, "bias": True} for offs in splits))


def test_groups_of_one_row():
    interpret({"offs": list(range(1, 13)), "rows": 12, "bias": True})


def test_rows_behind_the_last_group_are_zeros_without_bias():
    splits = ([0, 0, 0], [10, 20, 41], [1, 1, 1], [16, 32, 48])
    interpret(*({"offs": offs, "bias": True} for offs in splits))


@pytest.mark.parametrize("skips_rest", [False, True])
def test_garbage_in_offs_has_a_defined_result(skips_rest):
    low, high = -(2**31), 2**31 - 1
    splits = ([-5, 30, 60], [40, 20, 60], [30, 10, 20], [90, 95, 99], [20, 999, 60], [high, low, high], [low, low, low])
    interpret(*({"offs": offs, "bias": True, "skips_rest": skips_rest} for offs in splits))


def test_rows_behind_the_last_group_may_be_left_as_they_are():
    splits = ([0, 0, 0], [10, 20, 41], [1, 1, 1], [16, 32, 48], [20, 40, 60], [])
    cases = [{"offs": offs, "bias": True, "skips_rest": True} for offs in splits]
    cases.append({"offs": list(range(1, 31)), "rows": 47, "ctas": 5, "skips_rest": True})
    cases.append({"offs": [5, 5, 9], "scales": True, "skips_rest": True})
    interpret(*cases, *(case | {"k": 0} for case in cases[:2]))


@pytest.mark.parametrize("groups", [7, 8, 9, 16, 30])
def test_groups_beyond_the_first_that_are_looked_at_together(groups):
    """The script looks at 8 at a time; the rows behind the last group are one more."""
    offs = [2 * g + g % 3 for g in range(1, groups + 1)]
    garbage = [-1 if g % 4 == 2 else end for g, end in enumerate(offs)]
    interpret(*({"offs": each, "rows": max(offs) + 20, "ctas": 5, "bias": True} for each in (offs, garbage)))


@pytest.mark.parametrize("ctas", [1, 2, 7, 100])
def test_every_tile_is_computed_once_whatever_the_grid(ctas):
    interpret({"offs": [35, 36, 90], "rows": 100, "n": 50, "ctas": ctas})


def test_nothing_to_sum_and_nothing_to_write():
    nothing = ({"k": 0}, {"k": 0, "bias": True}, {"rows": 0}, {"n": 0}, {"offs": []}, {"offs": [], "k": 0})
    interpret(*nothing)


def test_e4m3_takes_its_scales_and_the_tail_does_not():
    cases = ({"layout": "nt"}, {"layout": "strided"}, {"offs": [5, 5, 40], "bias": True}, {"k": 0, "bias": True})
    interpret(*(case | {"scales": True} for case in cases))


@pytest.mark.parametrize("scales", ["row", "block"])
def test_e4m3_takes_scales_of_rows_and_of_blocks(scales):
    cases = ({"layout": "nt"}, {"layout": "strided", "n": 40, "k": 150}, {"offs": [5, 5, 40], "bias": True, "k": 128})
    more = ({"n": 140, "k": 16}, {"offs": [70, 3, 30], "k": 257}, {"k": 0, "bias": True}, {"offs": []})
    interpret(*({"scales": scales} | case for case in (*cases, *more)))
