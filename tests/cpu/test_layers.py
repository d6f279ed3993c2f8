"""Measured MoE layers without a GPU: which they are, what is kept of them, and which get rows in the tables."""

import json
import math

import pytest
from click.testing import CliRunner

from aot.spec.tables import read_table
from aot.spec.variants import Config
from aot.tuning import layer_rows, sweep_layers
from aot.tuning.layers import LOADS, MODELS, experts_on_a_gpu, layers, load_of, rows_at
from aot.tuning.measurements import Measurements
from aot.tuning.prune import dispensable_kernels
from aot.tuning.ragged_model import RaggedCost, costs_in_tables, expected_work
from aot.tuning.sweep_layers import LARGEST_FLOP, group_rows, products
from aot.tuning.sweep_ragged import MOST_ROWS, RaggedMeasurement
from aot.tuning.tune import tune

SMALL, LARGE, OTHER = (Config(64, n, 64, 4, 4) for n in (64, 128, 256))
COSTS = {
    (False, "hopper_ragged", SMALL): RaggedCost(3.0, 0.3, 0.1, 4000.0),
    (False, "hopper_ragged", LARGE): RaggedCost(3.0, 0.3, 0.3, 4000.0),
}
LAYER = (32, 4096, 7168)


def measured(split, config, us, load=9, dtype="bf16"):
    experts, columns, depth = LAYER
    rows = group_rows(split, experts, rows_at(load, experts))
    return RaggedMeasurement(dtype, split, rows, columns, depth, "hopper_ragged", 16, config, 132, us)


def both(config, multinomial, zipf, **how):
    return [measured("multinomial", config, multinomial, **how), measured("zipf", config, zipf, **how)]


def test_the_benchmarks_layers_come_first_and_each_layer_once():
    from benchmarks.shapes import MOE

    found = layers()
    first = list(dict.fromkeys((shape.experts, shape.columns, shape.depth) for shape in MOE.values()))
    assert found[: len(first)] == first and len(set(found)) == len(found)
    assert {(256, 4096, 7168), (32, 7168, 2048), (16, 1536, 2048), (16, 2048, 4096), (64, 2048, 512)} <= set(found)
    assert all(2 * math.prod(layer) <= 24e9 for layer in found)


def test_expert_parallelism_leaves_whole_experts_to_a_gpu():
    assert [experts_on_a_gpu(experts) for experts in (8, 64, 160, 512)] == [[8], [64], [160, 20], [512, 64, 16]]
    assert all(experts % 8 == 0 for experts, _, _ in MODELS.values())


def test_a_load_is_measured_with_rows_that_are_of_that_load():
    for experts in {experts for experts, _, _ in layers()}:
        assert [load_of(rows_at(load, experts), experts) for load in LOADS] == list(LOADS)


def test_a_layers_loads_are_measured_together_up_to_the_largest_product():
    found = list(products([(8, 4096, 7168), (16, 8192, 5120)]))
    assert [p.experts for p in found] == [8] * len(LOADS) + [16] * (len(found) - len(LOADS))
    assert [p.rows for p in found if p.experts == 8] == [rows_at(load, 8) for load in LOADS]
    assert found[-1].flop <= LARGEST_FLOP < 1.5 * found[-1].flop
    assert max(p.rows for p in products(layers())) <= MOST_ROWS


def test_a_row_goes_to_the_least_geometric_mean_over_the_splits():
    # LARGE wins one split by more than it loses the other; the arithmetic means are the other way round.
    found = both(SMALL, 100.0, 300.0) + both(LARGE, 50.0, 400.0)
    (row,) = layer_rows.exact_rows(found, COSTS)
    assert row == {
        "dtype": "bf16", "experts": 32, "columns": 4096, "depth": 7168, "load": 9,
        "kernel": "hopper_ragged", "config": "64x128x64_s4w4", "us": round(math.sqrt(50 * 400), 3),
    }  # fmt: skip


@pytest.mark.parametrize("us, rows", [(99.0, 0), (100.9, 0), (101.1, 1)])
def test_a_load_gets_a_row_only_where_the_model_loses_more_than_a_per_cent(us, rows):
    found = both(SMALL, us, us) + both(LARGE, 100.0, 100.0)
    assert [choice.config for _, choice in layer_rows.outcomes(found, COSTS)] == [SMALL]
    assert len(layer_rows.exact_rows(found, COSTS)) == rows


def test_a_kernel_without_a_cost_can_win_a_row_but_is_no_choice_of_the_model():
    found = both(SMALL, 100.0, 100.0) + both(OTHER, 80.0, 80.0)
    (row,) = layer_rows.exact_rows(found, COSTS)
    assert row["config"] == str(OTHER)
    assert layer_rows.outcomes(both(OTHER, 80.0, 80.0), COSTS) == []


def test_each_load_and_dtype_has_an_outcome_of_its_own():
    found = [m for load in (8, 9) for dtype in ("bf16", "e4m3") for m in both(SMALL, 9.0, 9.0, load=load, dtype=dtype)]
    costs = COSTS | {(True, *key[1:]): cost for key, cost in COSTS.items()}
    assert len(layer_rows.outcomes(found, costs)) == 4


def test_the_summary_says_what_the_model_loses_and_where_most():
    found = both(SMALL, 100.0, 100.0) + both(OTHER, 80.0, 80.0) + both(SMALL, 100.0, 100.0, load=10)
    first, worst, _ = layer_rows.summary(found, COSTS).splitlines()
    assert first == "2 loads of layers, mean loss 12.50 %, at most 25.0 %; rows for 1 of them"
    assert worst.startswith("32 experts, 724 rows, N 4096, K 7168: model 64x64x64_s4w4, best 64x256x64_s4w4 80.0 us")
    assert layer_rows.summary([], COSTS).startswith("0 loads of layers")


def test_measured_layers_survive_being_kept_and_take_little_room():
    found = [m for load in LOADS for config in (SMALL, LARGE) for m in both(config, 1.5, 2.5, load=load)]
    text = json.dumps(sweep_layers.to_json(found))
    assert sorted(sweep_layers.from_json(json.loads(text)), key=str) == sorted(found, key=str)
    assert len(text) < 60 * len(found)


def test_a_config_that_only_a_layer_wants_is_kept():
    found = Measurements(layers=both(SMALL, 9.0, 9.0) + both(LARGE, 8.0, 9.0) + both(OTHER, 9.0, 9.0))
    assert {config for _, _, config in dispensable_kernels(found)} == {SMALL, OTHER}


def test_refit_writes_the_rows_of_kept_layers_for_what_pruning_leaves(tmp_path):
    """The model is that of the tables, as no other ragged product was measured."""
    costs = {key: cost for key, cost in costs_in_tables(90).items() if key[:2] == (False, "hopper_ragged")}
    rising = sorted(costs, key=lambda key: expected_work(measured("zipf", key[2], 1.0)).us(costs[key]))
    choice, best, dispensable = (config for _, _, config in rising[:3])
    us = {7: (20.0, 10.0, 20.0), 8: (20.0, 10.0, 20.0), 9: (20.0, 10.05, 10.0), 10: (10.0, 20.0, 20.0)}
    found = [m for load in us for c, t in zip((choice, best, dispensable), us[load]) for m in both(c, t, t, load=load)]
    about, kept, out = {"gpu": "none"}, tmp_path / "kept.json", tmp_path / "tables"
    Measurements({"layers": about}, layers=found).write(kept)
    for options, winner in (((), dispensable), (("--prune",), best)):
        result = CliRunner().invoke(tune, ["--refit", *options, "--measurements", str(kept), "--out", str(out)])
        assert result.exit_code == 0, result.output
        assert [path.name for path in out.iterdir()] == ["layers_sm90.json"]
        table = read_table(out / "layers_sm90.json")
        assert table["measured"] == {"layers": about}
        assert {row["load"]: row["config"] for row in table["layers"]} == {7: str(best), 8: str(best), 9: str(winner)}
        assert "rows for 3 of them" in result.output and (str(dispensable) in result.output) == (winner == dispensable)
