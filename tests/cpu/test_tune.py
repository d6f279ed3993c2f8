"""The tuner's arithmetic, on measurements that are made up: the model, its fit, and what goes into the tables."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("numpy")

from aot.spec.tables import read_table
from aot.spec.variants import TABLES, Config, config_of, table_rows
from aot.tuning.cost_model import Cost, fit, longest_path
from aot.tuning.list_rows import exact_rows, fit_all
from aot.tuning.measurements import Measurements
from aot.tuning.prune import dispensable_kernels
from aot.tuning.sweep import LARGEST_FLOP, Measurement, flop, lists
from aot.tuning.tune import tune

SMALL, LARGE = Config(64, 64, 32, 4, 4), Config(128, 128, 64, 3, 8)
TRUTH = {("basic", 16, SMALL): Cost(2.0, 0.4, 0.1), ("basic", 16, LARGE): Cost(2.5, 0.9, 0.25)}
SHAPES = [((n, n, n),) * groups for groups in (1, 4, 16, 64) for n in (64, 128, 256, 512, 1024, 2048)]
SHAPES += [((128, 128, k),) * 20 for k in (64, 500, 8000)]
SLOTS = 132

sizes = st.tuples(st.integers(1, 700), st.integers(1, 700), st.integers(0, 900))


def measured(shapes, key, us=None, layout="nn"):
    kernel, alignment, config = key
    us = us or TRUTH[key].us(*longest_path(shapes, config, SLOTS))
    return Measurement(layout, tuple(shapes), kernel, alignment, config, SLOTS, us)


def everything():
    return [measured(shapes, key) for shapes in SHAPES for key in TRUTH]


@given(st.lists(sizes, max_size=20), st.integers(1, 40))
def test_the_longest_path_is_that_of_the_first_cta(shapes, slots):
    tiles = []
    for m, n, k in sorted(shapes, key=lambda shape: -shape[2]):
        tiles += [-(-k // 32)] * (-(-m // 64) * -(-n // 64))
    walked = tiles[::slots]
    assert longest_path(shapes, SMALL, slots) == (len(walked), sum(walked))


@given(st.permutations([(64, 64, 64), (200, 70, 512), (1, 1, 9), (640, 640, 64)]))
def test_the_order_of_the_groups_changes_no_prediction(shapes):
    assert longest_path(shapes, SMALL, 3) == longest_path(sorted(shapes), SMALL, 3)


def test_a_fit_finds_the_figures_that_made_the_measurements():
    for key, cost in fit_all(everything()).items():
        truth = TRUTH[key]
        assert vars(cost) == pytest.approx(vars(truth), rel=1e-3)


@given(st.lists(st.floats(0.97, 1.03), min_size=len(SHAPES), max_size=len(SHAPES)))
def test_a_fit_of_noisy_measurements_predicts_them(noise):
    key = ("basic", 16, LARGE)
    observations = []
    for shapes, factor in zip(SHAPES, noise):
        path = longest_path(shapes, LARGE, SLOTS)
        observations.append((*path, factor * TRUTH[key].us(*path)))
    cost = fit(observations)
    assert min(vars(cost).values()) >= 0 and cost.step_us > 0
    errors = [abs(cost.us(tiles, steps) / us - 1) for tiles, steps, us in observations]
    assert (sum(error**2 for error in errors) / len(errors)) ** 0.5 <= 0.04


def test_a_fit_never_goes_below_zero():
    # A launch that seems to cost less than nothing: time falls faster than the work does.
    observations = [(1, steps, max(0.01, 0.5 * steps - 3)) for steps in range(7, 40)]
    cost = fit(observations)
    assert cost.launch_us == 0 and cost.tile_us == 0 and cost.step_us > 0


def test_a_list_gets_a_row_only_where_the_model_chooses_wrongly():
    measurements = everything()
    costs = fit_all(measurements)
    assert exact_rows(measurements, costs) == []
    odd = ((96, 96, 96),) * 2 + ((32, 64, 128),)
    slow, fast = measured(odd, ("basic", 16, SMALL), us=30.0), measured(odd, ("basic", 16, LARGE), us=20.0)
    assert exact_rows([slow, fast], costs) == [
        {
            "dtype": dtype,
            "layout": "nn",
            "groups": [[32, 64, 128, 1], [96, 96, 96, 2]],
            "kernel": "basic",
            "config": "128x128x64_s3w8",
            "us": 20.0,
        }
        for dtype in ("fp16", "bf16")
    ]


def test_refit_writes_tables_from_kept_measurements(tmp_path):
    rows = [row for row in table_rows("basic", 90) if row["alignment"] == 16][:2]
    keys = [("basic", 16, config_of(row)) for row in rows]
    truths = dict(zip(keys, TRUTH.values()))

    def us(shapes, key):
        return truths[key].us(*longest_path(shapes, key[2], SLOTS))

    found = [measured(shapes, key, us(shapes, key)) for shapes in SHAPES for key in keys]
    kept = tmp_path / "kept.json"
    about = {"gpu": "none", "driver": "0", "date": "2026-01-01", "gg_build_id": "0"}
    Measurements({"lists": about}, lists=found).write(kept)
    result = CliRunner().invoke(tune, ["--refit", "--measurements", str(kept), "--out", str(tmp_path / "tables")])
    assert result.exit_code == 0, result.output
    table = read_table(tmp_path / "tables" / "basic_sm90.json")
    assert table["measured"] == {"lists": about}
    written = {("basic", row["alignment"], config_of(row)): row for row in table["configs"]}
    for key, truth in truths.items():
        assert {name: written[key][name] for name in vars(truth)} == pytest.approx(vars(truth), rel=1e-3)
    untouched = [row for row in table_rows("basic", 90) if ("basic", row["alignment"], config_of(row)) not in truths]
    assert all(row in table["configs"] for row in untouched) and len(table["configs"]) == len(written)
    assert read_table(tmp_path / "tables" / "shapes_sm90.json")["shapes"] == []


def test_a_config_that_takes_other_layouts_is_not_left_out_for_one_of_few_rows():
    kept, slower = (("hopper", 16, Config(64, n, 64, 8, 4)) for n in (64, 128))
    few, fewer = (("hopper", 16, Config(m, 64, 128, 9, 4)) for m in (32, 16))
    us = {kept: 10.0, slower: 20.0, few: 9.0, fewer: 9.01}
    lists = [measured(shapes, key, us[key]) for shapes in SHAPES[:3] for key in us]
    assert dispensable_kernels(Measurements(lists=lists)) == {slower, fewer}


def test_a_measurement_survives_being_kept():
    for measurement in everything()[:5]:
        again = Measurement.from_json(json.loads(json.dumps(measurement.to_json())))
        assert again.groups == measurement.groups and (again.us, again.config) == (measurement.us, measurement.config)


def test_what_is_not_measured_anew_is_kept_with_where_it_came_from(tmp_path, monkeypatch):
    kept, first, second = tmp_path / "kept.json", {"gpu": "first"}, {"gpu": "second"}
    old, new = everything(), [measured(SHAPES[0], ("basic", 16, SMALL), us=9.0)]
    Measurements({"lists": first}, lists=old).write(kept)
    monkeypatch.setattr("aot.tuning.tune.described_gpu", lambda sm: second)
    monkeypatch.setattr("aot.tuning.sweep_layers.sweep", lambda sm, seconds, *others: [])
    options = ["--measurements", str(kept), "--out", str(tmp_path / "tables")]
    result = CliRunner().invoke(tune, ["--only", "layers", *options])
    assert result.exit_code == 0, result.output
    read = Measurements.read(kept)
    assert (read.measured, read.lists) == ({"lists": first, "layers": second}, old)

    monkeypatch.setattr("aot.tuning.sweep.sweep", lambda sm, seconds, *others: new)
    few = CliRunner().invoke(tune, ["--only", "lists", *options])
    assert few.exit_code == 1 and "too few to fit a model" in few.output
    read = Measurements.read(kept)
    assert (read.measured, read.lists) == ({"lists": second, "layers": second}, new)


def test_lists_are_the_same_each_time_and_start_with_those_of_the_benchmark():
    from benchmarks.shapes import LISTS

    every = list(lists())
    assert every == list(lists()) and every[: len(LISTS)] == [tuple(shapes) for shapes in LISTS.values()]
    assert all(flop(shapes) <= LARGEST_FLOP for shapes in every)


def test_the_tuner_needs_neither_triton_nor_torch_to_be_imported():
    script = (
        "import sys\nfor name in ('triton', 'torch', 'gg_runtime'): sys.modules[name] = None\nimport aot.tuning.tune\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=TABLES.parents[1])
