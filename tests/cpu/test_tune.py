"""The tuner's arithmetic on lists, with measurements that are made up: the model, its fit, and which lists get rows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("scipy")

import gg_runtime
from aot.spec.gpus import read_gpu
from aot.spec.variants import TABLES, Config
from aot.tuning.cost_model import Cost, fit, longest_path
from aot.tuning.fits import costs_in
from aot.tuning.list_rows import exact_rows, fit_all, path_of
from aot.tuning.measurement import CostKey, ListProduct, Measurement
from aot.tuning.prune import dispensable_kernels
from arrays import operands
from devices import H200
from embedded import KERNELS

SMALL, LARGE = Config(64, 64, 32, 4, 4), Config(128, 128, 64, 3, 8)
TRUTH = {
    CostKey("basic", 16, False, SMALL): Cost(2.0, 0.4, 0.1),
    CostKey("basic", 16, False, LARGE): Cost(2.5, 0.9, 0.25),
}
SHAPES = [((n, n, n),) * groups for groups in (1, 4, 16, 64) for n in (64, 128, 256, 512, 1024, 2048)]
SHAPES += [((128, 128, k),) * 20 for k in (64, 500, 8000)]
SLOTS = 132

sizes = st.tuples(st.integers(1, 700), st.integers(1, 700), st.integers(0, 900))


def measured(shapes, key, us=None, layout="nn"):
    us = us or TRUTH[key].us(*longest_path(shapes, key.config, SLOTS))
    return Measurement(ListProduct(layout, tuple(shapes)), key, SLOTS, us)


def everything():
    return [measured(shapes, key) for shapes in SHAPES for key in TRUTH]


def slots_on_an_h200(kernel: dict) -> int:
    """CTAs that it holds at once: the least that shared memory, registers and threads allow, on each multiprocessor."""
    by_shared = (227 + 1) * 1024 // (kernel["shared_bytes"] + 1024)
    by_registers = 65536 // (kernel["registers"] * kernel["threads"])
    return 132 * max(1, min(by_shared, by_registers, 2048 // kernel["threads"]))


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40), st.integers(1, 60)), min_size=1, max_size=20))
def test_the_selector_predicts_for_lists_what_the_tuner_does(units):
    """Whatever the sizes; occupancy is computed from the kernels' facts here and there."""
    shapes = [(8 * m, 8 * n, 8 * k) for m, n, k in units]
    A, B, out = operands(shapes, dtype="float16")
    seen = gg_runtime.explain(A, B, out=out, device=H200).candidates
    predicted = {c["variant"]: c["predicted_us"] for c in seen if not c["ruled_out"]}
    folder, compared = TABLES / "H200", 0
    for key, row in costs_in(folder, read_gpu(folder)).items():
        name = f"{key.kernel}_sm90_fp16_nn_a16_{key.config}"
        if key.fp8 or KERNELS.get(name, {}).get("form") != "list":
            continue
        cost = Cost(row["launch_us"], row["tile_us"], row["step_us"])
        expected = cost.us(*longest_path(shapes, key.config, slots_on_an_h200(KERNELS[name])))
        assert predicted[name] == pytest.approx(expected, rel=1e-4), name
        compared += 1
    assert compared > 10


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
        assert vars(cost) == pytest.approx(vars(TRUTH[key]), rel=1e-3)


@given(st.lists(st.floats(0.97, 1.03), min_size=len(SHAPES), max_size=len(SHAPES)))
def test_a_fit_of_noisy_measurements_predicts_them(noise):
    key = CostKey("basic", 16, False, LARGE)
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


def test_lists_that_say_nothing_of_a_step_give_no_cost():
    """0 would mean to the selector that the config was never measured."""
    assert fit([(1, steps, 5.0) for steps in (1, 2, 3, 4)]) is None


def test_a_list_gets_a_row_only_where_the_model_chooses_wrongly():
    measurements, (small, large) = everything(), TRUTH
    costs = fit_all(measurements)
    assert exact_rows(measurements, costs) == []
    odd = ((96, 96, 96),) * 2 + ((32, 64, 128),)
    slow, fast = measured(odd, small, us=30.0), measured(odd, large, us=20.0)
    assert path_of(slow) == longest_path(odd, SMALL, SLOTS)
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


def test_a_config_that_takes_other_layouts_is_not_left_out_for_one_of_few_rows():
    kept, slower = (CostKey("hopper", 16, False, Config(64, n, 64, 8, 4)) for n in (64, 128))
    few, fewer = (CostKey("hopper", 16, False, Config(m, 64, 128, 9, 4)) for m in (32, 16))
    us = {kept: 10.0, slower: 20.0, few: 9.0, fewer: 9.01}
    assert dispensable_kernels([measured(shapes, key, us[key]) for shapes in SHAPES[:3] for key in us]) == {
        slower,
        fewer,
    }
