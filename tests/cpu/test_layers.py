"""Measured MoE layers without a GPU: which they are, the user's own, and which get rows in the tables."""

import json
import math

import pytest

from aot.spec.variants import Config
from aot.tuning.layers import (
    LARGEST_FLOP,
    LOADS,
    MODELS,
    MOST_ROWS,
    Layer,
    LayerFileError,
    experts_on_a_gpu,
    layers,
    load_of,
    read_layers,
    rows_at,
)
from aot.tuning.measurement import CostKey, GroupedProduct, Measurement

pytest.importorskip("scipy")

from aot.tuning import layer_rows
from aot.tuning.prune import dispensable_kernels
from aot.tuning.ragged_model import RaggedCost

SMALL, LARGE, OTHER = (CostKey("hopper_ragged", 16, False, Config(64, n, 64, 4, 4)) for n in (64, 128, 256))
COSTS = {SMALL: RaggedCost(3.0, 0.3, 0.1, 4000.0), LARGE: RaggedCost(3.0, 0.3, 0.3, 4000.0)}
EXPERTS, N, K = 32, 4096, 7168


def measured(split, key, us, load=9, dtype="bf16"):
    return Measurement(GroupedProduct(dtype, split, EXPERTS, rows_at(load, EXPERTS), N, K), key, 132, us)


def both(key, multinomial, zipf, **how):
    return [measured("multinomial", key, multinomial, **how), measured("zipf", key, zipf, **how)]


def test_the_benchmarks_layers_come_first_and_each_layer_once():
    pytest.importorskip("torch")
    from benchmarks.shapes import MOE

    found = [(layer.experts, layer.columns, layer.depth) for layer in layers()]
    first = list(dict.fromkeys((shape.experts, shape.columns, shape.depth) for shape in MOE.values()))
    assert found[: len(first)] == first and len(set(found)) == len(found)
    assert {(256, 4096, 7168), (32, 7168, 2048), (16, 1536, 2048), (16, 2048, 4096), (64, 2048, 512)} <= set(found)
    assert all(2 * math.prod(layer) <= 24e9 for layer in found)


def test_expert_parallelism_leaves_whole_experts_to_a_gpu():
    assert [experts_on_a_gpu(experts) for experts in (8, 64, 160, 512)] == [[8], [64], [160, 20], [512, 64, 16]]
    assert all(experts % 8 == 0 for experts, _, _ in MODELS.values())


def test_a_load_is_measured_with_rows_that_are_of_that_load():
    for experts in {layer.experts for layer in layers()}:
        assert [load_of(rows_at(load, experts), experts) for load in LOADS] == list(LOADS)


def test_a_layers_loads_are_measured_in_every_split_up_to_the_largest_product():
    units = list(Layer(8, 4096, 7168).products())
    assert [unit[0].rows for unit in units] == [rows_at(load, 8) for load in LOADS]
    assert all([p.split for p in unit] == ["multinomial", "zipf"] and unit[0].layer == unit[1].layer for unit in units)
    (*_, last) = Layer(16, 8192, 5120).products()
    assert last[0].flop <= LARGEST_FLOP < 1.5 * last[0].flop
    assert max(unit[0].rows for layer in layers() for unit in layer.products()) <= MOST_ROWS


def test_a_layer_of_one_expert_is_measured_from_a_row_on_each_number_once():
    rows = [unit[0].rows for unit in Layer(1, 4096, 7168).products()]
    assert rows[0] == 1 and rows == sorted(set(rows))


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
    assert [choice.key for _, choice in layer_rows.outcomes(found, COSTS)] == [SMALL]
    assert len(layer_rows.exact_rows(found, COSTS)) == rows


def test_every_load_gets_a_row_where_the_model_has_no_costs_of_the_gpu():
    found = (
        both(SMALL, 9.0, 9.0) + both(LARGE, 8.0, 8.0) + both(SMALL, 7.0, 7.0, load=10) + both(LARGE, 8.0, 8.0, load=10)
    )
    assert [(row["load"], row["config"]) for row in layer_rows.exact_rows(found, {})] == [
        (9, str(LARGE.config)), (10, str(SMALL.config)),
    ]  # fmt: skip


def test_rows_that_are_of_one_load_give_one_row():
    """The builder takes no two of a key. 72 rows of 16 experts are of load 4, as are the 64 that are measured."""
    found = [
        Measurement(GroupedProduct("bf16", "zipf", 16, rows, N, K), key, 132, us)
        for rows, us_of in ((64, {SMALL: 8.0, LARGE: 9.0}), (72, {SMALL: 9.0, LARGE: 8.0}))
        for key, us in us_of.items()
    ]
    for given in (found, found[::-1]):
        assert [(row["load"], row["config"]) for row in layer_rows.exact_rows(given, {})] == [(4, str(SMALL.config))]


def test_costs_of_other_kernels_are_none_of_a_loads():
    (row,) = layer_rows.exact_rows(both(OTHER, 80.0, 80.0), COSTS)
    assert row["config"] == str(OTHER.config)


def test_a_kernel_without_a_cost_can_win_a_row_but_is_no_choice_of_the_model():
    found = both(SMALL, 100.0, 100.0) + both(OTHER, 80.0, 80.0)
    (row,) = layer_rows.exact_rows(found, COSTS)
    assert row["config"] == str(OTHER.config)
    assert layer_rows.outcomes(both(OTHER, 80.0, 80.0), COSTS) == []


def test_each_load_and_dtype_has_an_outcome_of_its_own():
    found = [m for load in (8, 9) for dtype in ("bf16", "e4m3") for m in both(SMALL, 9.0, 9.0, load=load, dtype=dtype)]
    assert len(layer_rows.outcomes(found, COSTS)) == 4


def test_the_summary_says_what_the_model_loses_and_where_most():
    found = both(SMALL, 100.0, 100.0) + both(OTHER, 80.0, 80.0) + both(SMALL, 100.0, 100.0, load=10)
    first, worst, _ = layer_rows.summary(found, COSTS).splitlines()
    assert first == "2 loads of layers, mean loss 12.50 %, at most 25.0 %; rows for 1 of them"
    assert worst.startswith("32 experts, 724 rows, N 4096, K 7168: model 64x64x64_s4w4, best 64x256x64_s4w4 80.0 us")
    assert layer_rows.summary([], COSTS).startswith("0 loads of layers")


def test_a_config_that_only_a_layer_wants_is_kept():
    found = both(SMALL, 9.0, 9.0) + both(LARGE, 8.0, 9.0) + both(OTHER, 9.0, 9.0)
    assert dispensable_kernels(found) == {SMALL, OTHER}


def read(tmp_path, data):
    path = tmp_path / "config.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return read_layers(path)


MIXTRAL = {"model_type": "mixtral", "num_local_experts": 8, "hidden_size": 4096, "intermediate_size": 14336}
QWEN = {"num_experts": 128, "hidden_size": 2048, "moe_intermediate_size": 768, "intermediate_size": 6144}
DEEPSEEK = {"n_routed_experts": 256, "hidden_size": 7168, "moe_intermediate_size": 2048, "intermediate_size": 18432}
LLAMA_4 = {
    "model_type": "llama4",
    "text_config": {"num_local_experts": 16, "hidden_size": 5120, "intermediate_size": 8192},
}


@pytest.mark.parametrize(
    "config, expected",
    [
        (MIXTRAL, [Layer(8, 28672, 4096), Layer(8, 4096, 14336)]),
        (QWEN, [Layer(128, 1536, 2048), Layer(128, 2048, 768)]),
        (DEEPSEEK, [Layer(256, 4096, 7168), Layer(256, 7168, 2048)]),
        (LLAMA_4, [Layer(16, 16384, 5120), Layer(16, 5120, 8192)]),
    ],
    ids=["mixtral", "qwen", "deepseek", "llama 4"],
)
def test_a_models_config_gives_gate_and_up_side_by_side_and_down(tmp_path, config, expected):
    assert read(tmp_path, config) == expected


def test_a_list_of_layers_is_taken_as_it_is(tmp_path):
    rows = [{"experts": 4, "n": 512, "k": 256}, {"experts": 8, "n": 64, "k": 64, "rows": 100, "dtype": "fp16"}]
    rows += [{"experts": 8, "n": 64, "k": 64, "rows": [8, 16]}]
    assert read(tmp_path, rows) == [Layer(4, 512, 256), Layer(8, 64, 64, (100,)), Layer(8, 64, 64, (8, 16))]


@pytest.mark.parametrize(
    "data, message",
    [
        ("{", "config.json is no JSON file"),
        (3, "neither a list of layers nor a model's config.json"),
        ([], "names no layer"),
        ([3], "layer 1 is no object"),
        ([{"experts": 8, "n": 64}], "config.json, layer 1 has k = None: a positive whole number is needed"),
        ([{"experts": 0, "n": 64, "k": 64}], "has experts = 0"),
        ([{"experts": True, "n": 64, "k": 64}], "has experts = True"),
        ([{"experts": 8, "n": 64, "k": 64, "dtype": "e4m3"}], "has the dtype 'e4m3'"),
        ([{"experts": 8, "n": 64, "k": 64, "rows": [0]}], r"has rows = \[0\]: positive numbers"),
        ([{"experts": 8, "n": 64, "k": 64, "rows": 10**6}], "names no layer of at most 131072 rows"),
        (
            {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008},
            r"\(model_type llama\) has none of num_experts, num_local_experts, n_routed_experts: it is not of",
        ),
        ({"num_experts": 8}, "has num_experts, but no hidden_size and no moe_intermediate_size or intermediate_size"),
        ({"num_experts": "8", "hidden_size": 64, "intermediate_size": 64}, "has num_experts = '8'"),
    ],
)
def test_a_file_that_names_no_layers_says_what_it_lacks(tmp_path, data, message):
    with pytest.raises(LayerFileError, match=message):
        read(tmp_path, data)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(LayerFileError, match=r"none\.json is no JSON file: .*No such file"):
        read_layers(tmp_path / "none.json")
