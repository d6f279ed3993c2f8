"""The tuner's arithmetic for ragged products, on made-up measurements; and that the selector computes the same."""

import itertools
from dataclasses import replace

import pytest

pytest.importorskip("numpy")

import gg_runtime
from aot.spec.variants import Config, config_of, table_rows
from aot.tuning.prune import dispensable
from aot.tuning.ragged_model import RaggedCost, Work, expected_work, fit_all_ragged, fit_ragged, work_of
from aot.tuning.sweep_ragged import RaggedMeasurement
from arrays import ragged
from devices import H200

TRUTH = RaggedCost(3.0, 1.2, 0.35, 4200.0)
CONFIG = Config(64, 128, 64, 8, 4)
PRODUCTS = [
    ((rows,) * groups, columns, depth)
    for groups, rows in itertools.product((1, 8, 128), (1, 16, 200, 1024))
    for columns, depth in ((256, 512), (1536, 2048), (4096, 7168))
]


def measured(group_rows, columns, depth, us=None, config=CONFIG):
    made = RaggedMeasurement("bf16", "uniform", group_rows, columns, depth, "hopper_ragged", 16, config, 132, us or 1.0)
    return made if us else measured(group_rows, columns, depth, work_of(made).us(TRUTH), config)


def test_a_fit_finds_the_figures_that_made_the_measurements():
    rows = [measured(*product) for product in PRODUCTS]
    fitted = fit_ragged(rows, [row.us for row in rows], [1 / len(rows)] * len(rows))
    assert vars(fitted) == pytest.approx(vars(TRUTH), rel=1e-2)


def test_too_few_measurements_give_no_figures():
    assert not fit_all_ragged([measured(*product) for product in PRODUCTS[:2]], [measured(*PRODUCTS[2])] * 2)


def test_parts_count_alike_however_long_they_are():
    slow = [replace(measured(*product), us=2 * measured(*product).us) for product in PRODUCTS]
    fast = [measured(*product) for product in PRODUCTS]
    ((_, once),) = fit_all_ragged(fast, slow).items()
    ((_, often),) = fit_all_ragged(fast, slow * 7).items()
    assert vars(once) == pytest.approx(vars(often), rel=1e-2)
    assert once.step_us > 1.05 * TRUTH.step_us


def test_where_memory_and_products_take_as_long_both_count():
    cost = RaggedCost(0.0, 0.0, 1.0, 1.0)
    assert Work(1.0, 10, 10e3).us(cost) == pytest.approx(10 * 2 ** (1 / 3))
    assert Work(1.0, 10, 0.0).us(cost) == pytest.approx(10)


def test_a_config_goes_if_the_others_come_within_a_per_cent_everywhere():
    small, large, third = (Config(64, n, 64, 4, 4) for n in (64, 128, 256))
    products = [
        [measured((64,), 64, 64, us, config) for config, us in zip((small, large, third), times)]
        for times in ((10.0, 20.0, 10.05), (20.0, 10.0, 30.0))
    ]
    assert dispensable(products, lambda m: (m.kernel, m.alignment, m.config)) == {("hopper_ragged", 16, third)}
    nobody_else = [[m for m in product if m.config == small] for product in products]
    assert not dispensable(nobody_else, lambda m: (m.kernel, m.alignment, m.config))


@pytest.mark.parametrize("rows, groups", [(64, 1), (32768, 128), (512, 128), (32, 8), (131072, 16), (700, 512)])
@pytest.mark.parametrize("columns, depth", [(1536, 2048), (28672, 4096)])
def test_the_selector_predicts_what_the_tuner_does(rows, groups, columns, depth):
    mat_a, mat_b, offs = ragged(rows, columns, depth, groups, layout="nt", dtype="bfloat16")
    seen = gg_runtime.explain(mat_a, mat_b, offs=offs, device=H200).candidates
    predicted = {c["variant"]: c["predicted_us"] for c in seen if not c["ruled_out"]}
    for row in table_rows("hopper_ragged", 90):
        if "dtypes" not in row:
            config = config_of(row)
            cost = RaggedCost(*(row[name] for name in ("launch_us", "tile_us", "step_us", "stream_gb_s")))
            split = (rows // groups,) * (groups - 1) + (rows - rows // groups * (groups - 1),)
            m = RaggedMeasurement("bf16", "any", split, columns, depth, "hopper_ragged", 16, config, 132, 1.0)
            name = f"hopper_ragged_sm90_bf16_nt_a16_{config}"
            assert predicted[name] == pytest.approx(expected_work(m).us(cost), rel=1e-4), name
