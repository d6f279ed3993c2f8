"""The tuner's arithmetic for grouped products, on made-up measurements; and that the selector computes the same."""

import itertools
from dataclasses import replace

import pytest

pytest.importorskip("scipy")

import gg_runtime
from aot.spec.gpus import read_gpu
from aot.spec.variants import TABLES, Config
from aot.tuning.fits import costs_in
from aot.tuning.gradients import grid
from aot.tuning.measurement import CostKey, GradientProduct, GroupedProduct, Measurement
from aot.tuning.prune import dispensable
from aot.tuning.ragged_model import RaggedCost, Work, expected_work, fit_all_ragged, fit_ragged, summary, work_of
from arrays import ExchangeArray, fresh_address, ragged
from devices import H200

TRUTH = RaggedCost(3.0, 1.2, 0.35, 4200.0)
CONFIG = Config(64, 128, 64, 8, 4)
PRODUCTS = [
    (groups, rows * groups, columns, depth)
    for groups, rows in itertools.product((1, 8, 128), (1, 16, 200, 1024))
    for columns, depth in ((256, 512), (1536, 2048), (4096, 7168))
]


def key_of(config):
    return CostKey("hopper_ragged", 16, False, config)


def measured(groups, rows, columns, depth, us=None, config=CONFIG, truth=TRUTH):
    product = GroupedProduct("bf16", "uniform", groups, rows, columns, depth)
    made = Measurement(product, key_of(config), 132, us or 1.0)
    return made if us else replace(made, us=work_of(made).us(truth))


def error_of(cost, rows):
    """Mean, of the predictions, in per cent."""
    return 100 * sum(abs(work_of(row).us(cost) / row.us - 1) for row in rows) / len(rows)


@pytest.mark.parametrize(
    "truth",
    [TRUTH, RaggedCost(2.4, 0.1, 0.12, 4700.0), RaggedCost(5.0, 3.0, 0.7, 1800.0), RaggedCost(1.5, 0.0, 2.0, 300)],
)
def test_a_fit_finds_the_figures_that_made_the_measurements(truth):
    rows = [measured(*product, truth=truth) for product in PRODUCTS]
    fitted = fit_ragged(rows, [row.us for row in rows], [1 / len(rows)] * len(rows))
    assert vars(fitted) == pytest.approx(vars(truth), rel=1e-2, abs=1e-2)
    assert error_of(fitted, rows) < 0.1


def test_a_fitted_step_takes_some_time():
    """0 means "never measured" to the selector."""
    rows = [measured(*product, truth=RaggedCost(2.0, 1.0, 0.0, 4000.0)) for product in PRODUCTS]
    assert fit_ragged(rows, [row.us for row in rows], [1 / len(rows)] * len(rows)).step_us > 0


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
        [measured(1, 64, 64, 64, us, config) for config, us in zip((small, large, third), times)]
        for times in ((10.0, 20.0, 10.05), (20.0, 10.0, 30.0))
    ]
    assert dispensable(products) == {key_of(third)}
    assert not dispensable([[m for m in product if m.key.config == small] for product in products])


@pytest.mark.parametrize(
    "groups, rows, columns, turns, tile_rows",
    [
        (3, 576, 256, 0.65, 68),  # the lowest tiles there are, cut in two: most CTAs have none
        (8, 5000, 6528, 6.65, 160.25),  # 4 row tiles of a group, 832 of all, are 6.3 waves; 5 would be 7.9
        (8, 2600, 8192, 4, 166.5),  # 2 row tiles, 3.9 waves
        (129, 12900, 256, 1, 104),  # of more groups than a kernel looks at none is cut
    ],
)
def test_a_fitted_tile_is_as_low_as_the_last_wave_asks(groups, rows, columns, turns, tile_rows):
    product = GroupedProduct("bf16", "uniform", groups, rows, columns, 640)
    config = Config(192, 256, 64, 4, 4, consumers=2, split=6, slices=2)
    fitted = work_of(Measurement(product, CostKey("hopper_ragged_fitted", 16, False, config), 132, 1.0))
    plain = work_of(Measurement(product, CostKey("hopper_ragged", 16, False, config), 132, 1.0))
    assert plain.steps == 10 and fitted.bytes == plain.bytes
    assert fitted.turns == turns
    assert fitted.steps == pytest.approx(10 * (tile_rows + 69) / (192 + 69))


@pytest.mark.parametrize(
    "rows, groups, columns, block_n, turns",
    [
        (1330, 264, 1536, 128, 24),  # a few groups may be empty, but none has a second tile of 64 rows
        (240, 6, 28672, 256, 6),  # one may have a second tile, but none is empty
        (1, 394, 28672, 128, 2),
    ],
)
def test_no_tiles_are_expected_that_the_groups_cannot_have(rows, groups, columns, block_n, turns):
    """Normal distributions without bounds give 24.09, 5.74 and 2.43 turns."""
    config = Config(64, block_n, 64, 4, 4)
    assert expected_work(measured(groups, rows, columns, 2048, 1.0, config)).turns == turns


@pytest.mark.parametrize(
    "rows, groups",
    [(64, 1), (32768, 128), (512, 128), (32, 8), (131072, 16), (700, 512), (1330, 264), (240, 6), (1, 394)],
)
@pytest.mark.parametrize("columns, depth", [(1536, 2048), (28672, 4096)])
def test_the_selector_predicts_what_the_tuner_does(rows, groups, columns, depth):
    mat_a, mat_b, offs = ragged(rows, columns, depth, groups, layout="nt", dtype="bfloat16")
    seen = gg_runtime.explain(mat_a, mat_b, offs=offs, device=H200).candidates
    predicted = {c["variant"]: c["predicted_us"] for c in seen if not c["ruled_out"]}
    folder = TABLES / "H200"
    kernels = ("hopper_ragged", "hopper_ragged_fitted")
    costs = {
        key: row
        for key, row in costs_in(folder, read_gpu(folder)).items()
        if (key.kernel, key.alignment, key.fp8) in [(kernel, 16, False) for kernel in kernels]
    }
    assert len(costs) > 10 and {key.kernel for key in costs} == set(kernels)
    for key, row in costs.items():
        product = GroupedProduct("bf16", "uniform", groups, rows, columns, depth)
        expected = expected_work(Measurement(product, key, 132, 1.0)).us(RaggedCost(**row))
        name = f"{key.kernel}_sm90_bf16_nt_a16_{key.config}"
        assert predicted[name] == pytest.approx(expected, rel=1e-4), name


def explained_gradient(p: GradientProduct):
    def array(*shape, dtype, strides=None):
        return ExchangeArray(*shape, address=fresh_address(), dtype=dtype, strides=strides)

    names = {"bf16": "bfloat16", "fp32": "float32", "e4m3": "float8_e4m3fn"}
    out = array(p.groups, p.rows, p.columns, dtype=names[p.out])
    given = {"offs": array(p.groups, dtype="int32"), "out": out, "device": H200}
    if p.dtype == "bf16":
        mat_a = array(p.rows, p.total, dtype="bfloat16", strides=(1, p.rows))
        return gg_runtime.explain(mat_a, array(p.total, p.columns, dtype="bfloat16"), **given)
    mat_a = array(p.rows, p.total, dtype=names[p.dtype])
    mat_b = array(p.total, p.columns, dtype=names[p.dtype], strides=(1, p.total))
    scale_a = array(p.rows, p.total // 128, dtype="float32", strides=(1, p.rows))
    scale_b = array(p.total // 128, p.columns, dtype="float32")
    return gg_runtime.explain(mat_a, mat_b, scale_a=scale_a, scale_b=scale_b, k_alignment=128, **given)


SHORT = [GradientProduct("bf16", out, 32, 32 * each, 3072, 4096) for out in ("bf16", "fp32") for each in (16, 96, 192)]


@pytest.mark.parametrize("product", grid()[:12] + SHORT, ids=lambda p: p.facts)
def test_the_selector_predicts_gradients_as_the_tuner_does(product):
    """Of the configs that have costs of their own."""
    seen = explained_gradient(product).candidates
    predicted = {c["variant"]: c["predicted_us"] for c in seen if not c["ruled_out"]}
    folder, told = TABLES / "H200", 0
    for key, row in costs_in(folder, read_gpu(folder)).items():
        layout = "nt" if product.dtype == "e4m3" else "tn"
        dtypes = product.dtype if product.dtype == product.out else f"{product.dtype}_{product.out}"
        name = f"{key.kernel}_sm90_{dtypes}_{layout}_a16_{key.config}"
        if name in predicted and key.out == product.out:
            expected = expected_work(Measurement(product, key, 132, 1.0)).us(RaggedCost(**row))
            assert predicted[name] == pytest.approx(expected, rel=1e-4), name
            told += 1
    assert told


def test_losses_are_told_by_dtype_and_by_little_k():
    quick, slow = (CostKey("hopper_ragged_k", 16, False, Config(128, n, 64, 4, 4), "bf16") for n in (128, 256))
    costs = {quick: RaggedCost(3.0, 0.3, 0.1, 4000.0), slow: RaggedCost(30.0, 3.0, 1.0, 4000.0)}
    products = [GradientProduct("bf16", "bf16", 8, 8 * each, 1024, 1024) for each in (64, 256)]
    times = {
        (products[0], quick): 12.0,
        (products[0], slow): 10.0,
        (products[1], quick): 20.0,
        (products[1], slow): 20.0,
    }
    told = summary([Measurement(product, key, 132, us) for (product, key), us in times.items()], costs).splitlines()
    assert told[:3] == [
        "2 grouped products, mean loss 10.00 %, at most 20.0 %",
        "   1 in bf16 to bf16: mean loss 0.00 %, at most 0.0 %",
        "   1 in bf16 to bf16, K below 192 in each group: mean loss 20.00 %, at most 20.0 %",
    ]
