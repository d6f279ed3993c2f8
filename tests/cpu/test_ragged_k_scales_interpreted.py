"""The logic of `basic_ragged_k_block_scales`, in Triton's interpreter: ends, garbage, blocks, splits, exactly."""

import pytest
from interpreted import run_interpreted

pytestmark = pytest.mark.compiler
PLAIN = {"offs": [130, 131, 400], "total": 400, "m": 21, "n": 19}


def interpret(*cases: dict) -> None:
    """Each case is a change of PLAIN."""
    run_interpreted("ragged_k_scales", [PLAIN | case for case in cases])


def test_blocks_are_counted_from_each_groups_start():
    ends = ([130, 131, 400], [128, 256, 384], [0, 1, 400], [127, 255, 383], [256, 256, 257], [1, 2, 3], [400])
    interpret(*({"offs": offs} for offs in ends), {"offs": [0, 0, 0]}, {"offs": [0, 0], "total": 0})


def test_an_end_counts_as_the_next_whole_block_where_that_is_promised():
    ends = ([128, 256, 384], [1, 130, 399], [0, 127, 129], [-1, 500, 3], [385, 385, 400])
    interpret(*({"offs": offs, "alignment": 128} for offs in ends))


def test_garbage_in_offs_has_a_defined_result():
    low, high = -(2**31), 2**31 - 1
    splits = ([-5, 30, 60], [40, 20, 60], [300, 10, 20], [90, 950, 99], [high, low, high], [low, low, low])
    interpret(*({"offs": offs, "alignment": alignment} for offs in splits for alignment in (1, 128)))


def test_a_block_that_the_scales_do_not_have_takes_the_last_ones():
    interpret({"offs": [1, 2, 3, 400], "blocks": 4}, {"offs": [1, 2, 3, 4], "blocks": 1, "total": 4})


@pytest.mark.parametrize("groups", [7, 8, 9, 16, 30])
def test_groups_beyond_the_first_that_are_looked_at_together(groups):
    """The script looks at 8 at a time."""
    offs = [40 * g + g % 3 for g in range(1, groups + 1)]
    garbage = [-1 if g % 4 == 2 else end for g, end in enumerate(offs)]
    small = {"m": 3, "n": 18, "total": max(offs) + 20}
    interpret(*(small | {"offs": each, "alignment": by} for each in (offs, garbage) for by in (1, 128)))
    interpret(*(small | {"offs": offs, "ctas": ctas} for ctas in (1, 100)))


@pytest.mark.parametrize("splits", [2, 3, 5])
def test_a_groups_k_is_cut_at_whole_blocks_from_its_start(splits):
    """Parts that no K is left for are zeros."""
    form = {"offs": [1, 1, 700, 830, 1100], "total": 1110, "splits": splits, "m": 17, "n": 5}
    interpret(form, form | {"alignment": 128}, form | {"ctas": 50})


@pytest.mark.parametrize("scales", ["one", "a", "b", "none"])
def test_one_scale_is_that_of_all_blocks(scales):
    interpret({"scales": scales})


def test_alpha_and_any_grid():
    interpret(*({"alpha": alpha} for alpha in (0.5, -2, 0)), *({"m": 50, "n": 35, "ctas": ctas} for ctas in (1, 7)))


def test_nothing_to_sum_and_nothing_to_write():
    interpret({"total": 0}, {"m": 0}, {"n": 0}, {"offs": []})
