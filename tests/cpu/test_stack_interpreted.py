"""The logic of `basic_stack`, in Triton's interpreter: counts, garbage in them and strides, exactly."""

import pytest
from interpreted import run_interpreted

pytestmark = pytest.mark.compiler
PLAIN = {"layout": "nt", "groups": 3, "m": 20, "n": 21, "k": 19}
LAYOUTS = ("nn", "nt", "tn", "tt", "strided")


def interpret(*cases: dict) -> None:
    """Each case is a change of PLAIN."""
    run_interpreted("stack", [PLAIN | case for case in cases])


@pytest.mark.parametrize("counts", [None, [20, 3, 17]])
def test_every_layout_with_and_without_bias(counts):
    interpret(*({"layout": layout, "bias": bias, "counts": counts} for layout in LAYOUTS for bias in (False, True)))


def test_its_aligned_guarantees():
    """With rows contiguous 8 divides their number, and not the counts."""
    sizes = ({"n": 24, "k": 40}, {"n": 8, "k": 8, "counts": [24, 3, 17]}, {"n": 40, "k": 16, "bias": True})
    interpret(*(size | {"layout": layout, "aligned": True, "m": 24} for layout in LAYOUTS[:4] for size in sizes))


def test_uneven_counts_and_empty_groups_at_every_place():
    every = ([0, 20, 20], [20, 0, 20], [20, 20, 0], [0, 0, 20], [20, 0, 0], [0, 0, 0], [1, 16, 17], [15, 1, 19])
    interpret(*({"counts": counts, "bias": True} for counts in every))


def test_garbage_in_counts_has_a_defined_result():
    low, high = -(2**31), 2**31 - 1
    every = ([-1, 5, 21], [high, low, high], [low, low, low], [high, high, high], [-5, 999, 20])
    interpret(*({"counts": counts, "layout": layout} for counts in every for layout in ("nn", "tn")))


@pytest.mark.parametrize("groups", [7, 8, 9, 16, 30])
def test_groups_beyond_the_first_that_are_looked_at_together(groups):
    """The script looks at 8 at a time."""
    garbage = [-1 if g % 4 == 2 else 3 * g % 41 for g in range(groups)]
    plain = {"groups": groups, "m": 18, "n": 5, "k": 3, "ctas": 5, "bias": True}
    interpret(plain, plain | {"counts": garbage}, plain | {"counts": [0] * groups})


@pytest.mark.parametrize("ctas", [1, 2, 7, 100])
def test_every_tile_is_computed_once_whatever_the_grid(ctas):
    interpret({"m": 35, "n": 50, "ctas": ctas}, {"m": 35, "n": 50, "ctas": ctas, "counts": [35, 1, 20]})


def test_one_matrix_for_all_groups():
    interpret({"shared_a": True}, {"shared_b": True}, {"shared_a": True, "counts": [3, 0, 20]})


def test_nothing_to_sum_and_nothing_to_write():
    nothing = ({"k": 0}, {"k": 0, "bias": True}, {"m": 0}, {"n": 0}, {"groups": 0}, {"groups": 0, "k": 0})
    interpret(*nothing, {"k": 0, "counts": [3, 0, 20], "bias": True})


@pytest.mark.parametrize("scales", ["tensor", "row", "block"])
def test_e4m3_takes_scales_of_all_of_rows_and_of_blocks(scales):
    """Past a count rows and their scales are NaN."""
    cases = (
        {"layout": "strided", "n": 40, "k": 150}, {"counts": [20, 0, 5], "bias": True, "k": 128},
        {"n": 140, "k": 16, "counts": [1, 20, 19]}, {"m": 70, "k": 257, "counts": [70, 3, 30]},
        {"k": 0, "bias": True}, {"groups": 0}, {"counts": [-1, 5, 2**31 - 1]},
    )  # fmt: skip
    interpret(*({"scales": scales, "layout": "strided" if scales == "block" else "nt"} | case for case in cases))
