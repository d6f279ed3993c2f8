"""Two wheels in turns: what is made of their figures, which are made up here."""

import pytest

pytest.importorskip("torch")

from benchmarks import turns


def test_a_figure_is_the_median_of_its_turns_and_of_host_times_the_least():
    before = [{"row": us, "host: call": us} for us in (30.0, 10.0, 20.0)]
    after = [{"row": us, "host: call": us} for us in (8.0, 10.0, 40.0)]
    _, row, host = turns.table([list(pair) for pair in zip(before, after)])
    assert row.split() == ["row", "20.00", "10.00", "2.000"]
    assert host.split() == ["host:", "call", "10.00", "8.00", "1.250"]


def test_a_config_that_one_wheel_lacks_has_no_line():
    head, *rows = turns.table([[{"fp8: a": 1.0, "fp8: new": 2.0}, {"fp8: a": 1.0}]])
    assert head.split() == ["us", "before", "after", "ratio"]
    assert [line.split()[:2] for line in rows] == [["fp8:", "a"]]
