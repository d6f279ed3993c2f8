"""A config that nobody measured starts from the costs of its nearest relative."""

import pytest

from aot.spec.gpus import read_gpu
from aot.spec.variants import TABLES, Config
from aot.tuning.fits import costs_in
from aot.tuning.measurement import CostKey, GroupedProduct, Measurement
from aot.tuning.relatives import distance, estimated_cost, times_of

FIGURES = {"launch_us": 2.0, "tile_us": 1.0, "step_us": 0.5, "stream_gb_s": 4000.0}


def key(n=128, kernel="hopper_ragged", fp8=False, alignment=16, **config):
    sizes = {"block_m": 64, "block_n": n, "block_k": 128 if fp8 else 64, "stages": 8, "warps": 4}
    return CostKey(kernel, alignment, fp8, Config(**sizes | config))


def measured(rows, key_, us, dtype="bf16"):
    return Measurement(GroupedProduct(dtype, "uniform", 8, rows, 256, 512), key_, 132, us)


def test_the_nearest_tile_of_the_same_kernel_comes_first():
    near, far, other_kernel = key(64), key(256, block_m=128), key(128, "hopper")
    costs = dict.fromkeys((far, other_kernel, near), FIGURES)
    assert estimated_cost(key(128), costs, {}).like == near
    assert distance(key(128), near) == 1 and distance(key(128), far) == 2 and distance(key(128), other_kernel) == 2.5


def test_a_kernel_that_is_new_starts_from_the_same_config_of_its_sibling():
    """`hopper` in e4m3 is never measured: lists go through the pipeline of `hopper_ragged`."""
    like = key(fp8=True)
    costs = {like: FIGURES, key(64, "hopper"): FIGURES | {"step_us": 9.0}, key(128, "hopper"): FIGURES}
    assert estimated_cost(key(128, "hopper", fp8=True), costs, {}) == (FIGURES, like, 1.0)


def test_a_kernel_without_scales_starts_from_one_without_them():
    """Promotion with scales by row or by block takes longer than without."""
    like, scaled = key(fp8=True, slices=1), key(kernel="hopper_ragged_block_scales", fp8=True, slices=2)
    costs = {scaled: FIGURES | {"step_us": 9.0}, like: FIGURES}
    assert estimated_cost(key(kernel="hopper", fp8=True, slices=2), costs, {}) == (FIGURES, like, 1.0)
    other = key(64, kernel="hopper_ragged_block_scales", fp8=True)
    assert estimated_cost(other, costs, {}).like == scaled


def test_pointers_are_no_relatives_of_descriptors_nor_unaligned_kernels_of_aligned_ones():
    assert estimated_cost(key(), {key(kernel="basic_ragged"): FIGURES, key(kernel="tma"): FIGURES}, {}) is None
    unaligned = key(kernel="basic", alignment=2)
    assert estimated_cost(unaligned, {key(kernel="basic"): FIGURES}, {}) is None


def test_the_factor_is_the_geometric_mean_of_what_both_were_timed_on():
    new, old = key(128), key(64)
    times = times_of(
        [
            measured(8, new, 20.0),
            measured(8, old, 10.0),
            measured(16, new, 8.0),
            measured(16, old, 1.0),
            measured(9, old, 1),
        ]
    )
    figures, like, factor = estimated_cost(new, {old: FIGURES}, times)
    assert like == old and factor == pytest.approx(4)
    assert figures == pytest.approx({"launch_us": 8.0, "tile_us": 4.0, "step_us": 2.0, "stream_gb_s": 1000.0})


def test_where_the_config_itself_was_not_timed_the_factor_is_that_of_the_two_kernels():
    """e4m3 here takes 0.6 of the time on the configs that were timed in both."""
    timed = [(64, 0.6), (256, 0.6)]
    times = times_of(
        [
            m
            for n, ratio in timed
            for m in (measured(8, key(n, block_k=128), 10.0), measured(8, key(n, fp8=True), 10 * ratio, "e4m3"))
        ]
    )
    costs = {key(128, block_k=128): FIGURES}
    _, like, factor = estimated_cost(key(128, fp8=True), costs, times)
    assert like == key(128, block_k=128) and factor == pytest.approx(0.6)


def test_a_relative_says_about_what_a_measured_config_costs():
    """Each config of the H200's tables, from the others: steps of the tensor cores within a factor of 2.5."""
    folder = TABLES / "H200"
    costs = costs_in(folder, read_gpu(folder))
    grouped = {one: row for one, row in costs.items() if one.kernel == "hopper_ragged"}
    assert len(grouped) > 10
    for one, row in grouped.items():
        figures, *_ = estimated_cost(one, {other: known for other, known in grouped.items() if other != one}, {})
        assert (
            0.4 < figures["step_us"] / row["step_us"] < 2.5 and 0.6 < figures["stream_gb_s"] / row["stream_gb_s"] < 1.7
        )
