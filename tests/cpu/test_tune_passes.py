"""Passes of the tuner: what is kept, what a killed one loses, where the next one goes on, and what does not count."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace

import pytest
from builder_sandbox import ROOT

from aot.spec.gpus import Gpu
from aot.tuning.family import Family, Pass
from aot.tuning.measurement import GroupedProduct, ListProduct
from aot.tuning.store import Run, Store

H200 = Gpu("NVIDIA H200", 90, 90, 132, 1980, 4814)
RUN = Run(H200, "580.1", "2026-11-22", "build")
UNITS = [[GroupedProduct("bf16", how, 8, rows, 256, 512) for how in ("uniform", "zipf")] for rows in (8, 16, 32, 64)]
NAMES = [f"hopper_ragged_sm90_bf16_nt_a16_64x{n}x64_s8w4" for n in (64, 128)]
CUBINS = {name: f"cubin of {name}" for name in NAMES}
NAMED = {name: index for index, name in enumerate(NAMES)}


class MadeUp(Family):
    """Takes a second of a clock that the test winds, and knows the times."""

    name = "ragged"

    def __init__(self, wrong=(), after=lambda unit: None):
        self.asked, self.wrong, self.after = [], wrong, after

    def units(self):
        return UNITS

    def candidates(self, embedded, product):
        return embedded

    def measure(self, unit, kernels, say):
        self.asked.append((UNITS.index(unit), [NAMED[name] for name in kernels]))
        self.after(unit)
        return {p: {name: (132, 10.0 + NAMED[name]) for name in kernels if name not in self.wrong} for p in unit}


@pytest.fixture
def passed(tmp_path, monkeypatch):
    """A pass over the file, for a time, with these kernels: (the family, what is left)."""
    clock = [0.0]
    monkeypatch.setattr("aot.tuning.family.time.monotonic", lambda: clock[0])

    def wind(unit):
        clock[0] += 1

    def go(seconds=1e9, cubins=CUBINS, run=RUN, **how):
        monkeypatch.setattr(
            "aot.tuning.family.embedded", lambda sm, names: [Named(name) for name in NAMES if name in names]
        )
        store, family = Store(tmp_path / "kept.jsonl"), MadeUp(after=wind, **how)
        store.start(run)
        one = Pass(family, run, store, cubins)
        one.measure(seconds, pytest.fail)
        return family.asked, one.left()

    return go


class Named:
    def __init__(self, name):
        self.name = name


def test_a_pass_stops_when_its_time_is_up_and_the_next_goes_on(passed):
    asked, left = passed(seconds=1)
    assert asked == [(0, [0, 1]), (1, [0, 1])] and (left.left, left.total) == (2, 4)
    assert str(left) == "2 of 4 left"
    asked, left = passed()
    assert asked == [(2, [0, 1]), (3, [0, 1])] and str(left) == "all 4 measured"
    assert passed() == ([], left)


def test_a_kernel_that_changed_is_measured_again_beside_the_best_of_the_others(passed):
    passed()
    asked, left = passed(cubins=CUBINS | {NAMES[1]: "another"})
    assert asked == [(index, [1, 0]) for index in range(4)] and left.left == 0


def test_another_gpu_starts_from_nothing(passed):
    passed()
    for other in (replace(H200, gpu="NVIDIA H20"), replace(H200, multiprocessors=66)):
        asked, _ = passed(run=replace(RUN, gpu=other))
        assert len(asked) == 4
    assert passed()[0] == []


def test_a_wrong_kernel_is_not_tried_again_and_has_no_time(passed, tmp_path):
    _, left = passed(wrong=NAMES[:1])
    assert left.left == 0 and passed()[0] == []
    times = [one for one in Store(tmp_path / "kept.jsonl").times() if one.variant == NAMES[0]]
    assert len(times) == 8 and all(one.us is None for one in times)


def test_a_time_comes_back_with_where_it_is_from(tmp_path):
    store, product = Store(tmp_path / "new folder" / "kept.jsonl"), UNITS[0][1]
    for run in (RUN, replace(RUN, date="2026-11-23", gg_build_id="later")):
        store.start(run)
        store.add("ragged", product.to_json(), {("name", "cubin", 264): 12.345678, ("other", "cubin", 132): None})
    times = list(Store(store.path).times())
    assert [(one.run.date, one.variant, one.slots, one.us) for one in times] == [
        (date, *rest) for date in ("2026-11-22", "2026-11-23") for rest in (("name", 264, 12.346), ("other", 132, None))
    ]
    assert times[0].run == RUN and GroupedProduct.from_json(json.loads(times[0].product)) == product
    assert times[0].run.about == {"gpu": "NVIDIA H200", "driver": "580.1", "date": "2026-11-22", "gg_build_id": "build"}


def test_lists_come_back_in_their_order():
    product = ListProduct("nt", ((64, 64, 64), (64, 64, 64), (128, 64, 64), (64, 64, 64)))
    assert product.to_json() == ["nt", [[64, 64, 64, 2], [128, 64, 64, 1], [64, 64, 64, 1]]]
    assert ListProduct.from_json(json.loads(json.dumps(product.to_json()))) == product


@pytest.mark.parametrize("cut", range(1, 30))
def test_half_a_line_is_lost_and_nothing_else(tmp_path, cut):
    store, product = Store(tmp_path / "kept.jsonl"), UNITS[0][0]
    store.start(RUN)
    for us in (1.0, 2.0):
        store.add("ragged", product.to_json(), {("name", "cubin", 1): us})
    data = store.path.read_bytes()
    store.path.write_bytes(data[:-cut])
    assert [one.us for one in Store(store.path).times()] == [1.0]
    again = Store(store.path)
    again.start(RUN)
    again.add("ragged", product.to_json(), {("name", "cubin", 1): 3.0})
    assert [one.us for one in Store(store.path).times()] == [1.0, 3.0]


def test_a_killed_pass_keeps_all_but_what_it_was_at(tmp_path):
    script = f"""
        import os, signal, sys
        sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "tests/cpu")!r}]
        from pathlib import Path
        import aot.tuning.family as family
        from test_tune_passes import CUBINS, NAMES, RUN, UNITS, MadeUp, Named, Pass, Store
        family.embedded = lambda sm, names: [Named(name) for name in NAMES]
        kill = lambda unit: unit is UNITS[2] and os.kill(os.getpid(), signal.SIGKILL)
        store = Store(Path({str(tmp_path / "kept.jsonl")!r}))
        store.start(RUN)
        Pass(MadeUp(after=kill), RUN, store, CUBINS).measure(1e9, print)
    """
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], env=environment)
    assert ended.returncode == -signal.SIGKILL
    products = {one.product for one in Store(tmp_path / "kept.jsonl").times()}
    assert products == {json.dumps(product.to_json()) for unit in UNITS[:2] for product in unit}
