"""The logic of `basic_gated`, in Triton's interpreter: where gate and up lie, rows by an index, splits, activations."""

import pytest
from interpreted import run_interpreted

from aot.spec.abi import GATED_ACTIVATIONS

pytestmark = pytest.mark.compiler
PLAIN = {"layout": "nt", "order": "gate_first", "activation": "swiglu", "offs": [20, 40, 60], "rows": 60}
PLAIN |= {"n": 48, "k": 24}
# With N contiguous, columns in turns are for a kernel of their own: hopper_gated_pairs.
PLACES = [("nn", "gate_first"), ("nn", "up_first"), *(("nt", order) for order in ("gate_first", "up_first"))]
PLACES.append(("nt", "interleaved"))
LOW, HIGH = -(2**31), 2**31 - 1


def interpret(*cases: dict) -> None:
    """Each case is a change of PLAIN."""
    run_interpreted("gated", [PLAIN | case for case in cases])


@pytest.mark.parametrize(("layout", "order"), PLACES)
def test_gate_and_up_are_read_where_they_lie(layout, order):
    sizes = ({"n": 16, "k": 8}, {"n": 48, "k": 40}, {"n": 80, "k": 16}, {"n": 64, "k": 32})
    both = ({"bias": bias} | size for bias in (False, True) for size in sizes)
    interpret(*({"layout": layout, "order": order} | case for case in both))


@pytest.mark.parametrize("activation", GATED_ACTIVATIONS)
def test_every_activation_in_every_order(activation):
    places = ({"layout": layout, "order": order, "bias": True} for layout, order in PLACES)
    interpret(*({"activation": activation} | place for place in places))


@pytest.mark.parametrize("limit", [0.25, 3, 1000])
def test_gate_and_up_are_limited(limit):
    activations = ({"activation": activation, "swiglu_limit": limit} for activation in ("swiglu", "swiglu_oai"))
    interpret(*activations)


@pytest.mark.parametrize("index_type", ["int32", "int64"])
def test_an_index_may_hold_anything(index_type):
    """Rows that are not there are zeros, and so is their product; with a bias, their output is not."""
    given = {"index": "any", "index_type": index_type, "a_rows": 23}
    shapes = ({}, {"rows": 75}, {"offs": [3, 3, 70], "rows": 71}, {"a_rows": 1}, {"a_rows": 0}, {"a_rows": 300})
    interpret(*(given | shape | {"bias": bias} for shape in shapes for bias in (False, True)))


def test_rows_by_an_index_come_more_than_once_or_not_at_all():
    twice = {"index": [row // 2 for row in range(60)], "a_rows": 30}
    backwards = {"index": [59 - row for row in range(60)], "a_rows": 60}
    interpret(*(case | {"layout": layout} for case in (twice, backwards) for layout in ("nn", "nt")))


SPLITS = ([0, 17, 60], [23, 23, 60], [60, 60, 60], [1, 2, 60], [59, 59, 60], [10, 20, 41], [0, 0, 0], [60])


@pytest.mark.parametrize("skips_rest", [False, True])
def test_uneven_groups_and_rows_behind_the_last_one(skips_rest):
    """Those rows are zeros, whatever the activation makes of a bias, or with skips_rest as they were."""
    cases = ({"offs": offs, "bias": True, "skips_rest": skips_rest, "activation": "swiglu_oai"} for offs in SPLITS)
    interpret(*cases, {"offs": [10, 20, 41], "skips_rest": skips_rest, "index": "any", "a_rows": 9})


@pytest.mark.parametrize("skips_rest", [False, True])
def test_garbage_in_offs_has_a_defined_result(skips_rest):
    splits = ([-5, 30, 60], [40, 20, 55], [30, 10, 20], [90, 95, 99], [20, 999, 60], [HIGH, LOW, HIGH], [LOW, LOW, LOW])
    interpret(*({"offs": offs, "bias": True, "skips_rest": skips_rest} for offs in splits))


@pytest.mark.parametrize("groups", [7, 8, 9, 30])
def test_groups_beyond_the_first_that_are_looked_at_together(groups):
    """The script looks at 8 at a time; the rows behind the last group are one more."""
    offs = [2 * g + g % 3 for g in range(1, groups + 1)]
    cases = ({"offs": offs, "rows": max(offs) + 20, "ctas": 5, "skips_rest": skips} for skips in (False, True))
    interpret(*cases)


@pytest.mark.parametrize("ctas", [1, 2, 7, 100])
def test_every_tile_is_computed_once_whatever_the_grid(ctas):
    interpret({"offs": [35, 36, 90], "rows": 100, "n": 112, "ctas": ctas})


def test_nothing_to_sum_and_nothing_to_write():
    interpret({"k": 0}, {"k": 0, "bias": True}, {"rows": 0}, {"n": 0}, {"offs": []}, {"offs": [], "k": 0})
