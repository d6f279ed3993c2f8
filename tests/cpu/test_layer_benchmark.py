"""The layer's benchmark: musts against figures, kernels sorted into parts, a process that dies."""

import pytest

pytest.importorskip("torch")

from benchmarks import layer, layer_kernels, layer_musts, report
from benchmarks.figures import vllm_table, whole_layers_table
from benchmarks.layer_calls import ACTIVATED, COMBINE, DOWN, GATHERED, KEPT, LAYER, ROUTE, UP, VLLM, VLLM_PRODUCTS
from benchmarks.layer_shapes import LAYERS, layer_named

CEILINGS = {"dense_bf16_8192_tflops": 800.0, "copy_gb_per_s": 4300.0}
US = {
    UP: 355.0, ACTIVATED: 360.0, GATHERED: 380.0, KEPT: 400.0, DOWN: 185.0, ROUTE: 15.0, COMBINE: 39.0, LAYER: 610.0,
    "torch summed": 1000.0, "torch unrolled": 980.0, "torch index_add_": 800.0, VLLM: 915.0, VLLM_PRODUCTS: 640.5,
}  # fmt: skip
HOT_US = {LAYER: 700.0, "torch unrolled": 1050.0, VLLM: 980.0}
ROW = {"layer": "Qwen3-30B", "us": US, "hot_us": HOT_US, "failed": {}, "used": 128}


def musts(**changed):
    row = ROW | {"us": US | changed, "host": {"host_us": 20.0, "empty_launches_us": 17.5}}
    return {must.name: must for must in layer_musts.musts(row, CEILINGS)}


def test_figures_are_ratios_of_the_run():
    found = musts()
    copied = LAYERS["Qwen3-30B"].combine_bytes / 4300e3
    assert found["up + act / up"].figure == pytest.approx(360 / 355)
    assert found["with gather / up"].figure == pytest.approx(380 / 355)
    assert found["pre-act. kept, + µs"].bound == pytest.approx(2 * 32768 * 1536 * 2 / 4300e3)
    assert found["combine µs"].bound == pytest.approx(1.15 * copied)
    assert found["(layer − routing) / parts"].figure == pytest.approx(595 / (355 + 185 + copied))
    assert found["× torch"].figure == pytest.approx(980 / 610)  # the best without index_add_
    assert found["host µs"].bound == 20.5
    assert all(must.met for must in found.values())


@pytest.mark.parametrize(
    ("part", "us", "must"),
    [
        (ACTIVATED, 366.0, "up + act / up"),
        (GATHERED, 384.0, "with gather / up"),
        (KEPT, 427.0, "pre-act. kept, + µs"),
        (COMBINE, 41.0, "combine µs"),
        (LAYER, 640.0, "(layer − routing) / parts"),
        ("torch summed", 900.0, "× torch"),
    ],
)
def test_a_must_that_is_missed_is_told(part, us, must):
    found = musts(**{part: us})
    assert [name for name, one in found.items() if not one.met] == [must]
    assert str(found[must]).endswith(" NO")


def test_routing_has_a_bound_at_two_sizes():
    found = {name: layer_musts.musts(ROW | {"layer": name, "us": {ROUTE: 20.0}}, CEILINGS) for name in LAYERS}
    bounds = {name: [must.bound for must in musts] for name, musts in found.items() if musts}
    assert bounds == {"30B": [25.0], "Qwen3-30B decode": [6.0]}


def test_tables_have_what_was_timed_and_say_what_failed():
    half = {"layer": "Mixtral", "us": {UP: 100.0}, "hot_us": {}, "failed": {LAYER: "CudaError: gone"}, "used": 8}
    rows = [ROW, half, {"layer": "gpt-oss", "failed": {"all": "the process ended"}}]
    told = layer_musts.table(rows, CEILINGS).splitlines()
    figures = [355, 185, 360, 380, 400, 15, 39, 610, 980, 800, 915, 700, 1050, 980]
    assert [float(us) for us in told[1].split()[1:]] == figures
    assert told[2].split()[1:] == ["100.0", *["-"] * 13] and "fused_experts FAILED: CudaError: gone" in told[6]
    assert told[-1].startswith("6 of 6 musts met")
    first, second, third = whole_layers_table(rows).splitlines()[2:]
    assert first.endswith("| 355 | 380 | 185.0 | 15.00 | 39.0 | 610 | 980 | 1.61 | 1.50 |")
    assert vllm_table([ROW]).splitlines()[2] == "| Qwen3-30B | 610 | 915 | 1.50 | 1.40 | 640 | 1.05 | – |"
    assert second.endswith("| 100.0 | – | – | – | – | – | – | – | – |") and third.count("–") == 9


def test_kernels_are_sorted_into_parts():
    torch_layer = [
        ("void cub::DeviceRadixSortOnesweepKernel<...>", 5.0),
        ("triton_poi_fused_searchsorted_0", 2.0),
        ("triton_poi_fused_floor_divide_index_1", 52.0),
        ("void at::cuda::detail::prepare_grouped_gemm_data<...>", 1.0),
        ("void cutlass::device_kernel<at::cuda::detail::enable_3x_kernel_for_sm9x<GemmUniversal<...>>>", 400.0),
        ("triton_poi_fused_mul_silu_2", 39.0),
        ("void at::cuda::detail::prepare_grouped_gemm_data<...>", 1.0),
        ("void cutlass::device_kernel<at::cuda::detail::enable_3x_kernel_for_sm9x<GemmUniversal<...>>>", 200.0),
        ("triton_poi_fused_scatter_3", 3.0),
        ("triton_red_fused_index_mul_sum_4", 160.0),
    ]
    parts = dict(zip(layer_kernels.PARTS, (7.0, 52.0, 401.0, 39.0, 201.0, 163.0)))
    assert layer_kernels.sorted_into_parts(torch_layer) == parts
    fused = [("route_count", 4.0), ("route_place", 6.0), ("hopper_ragged", 370.0), ("hopper_ragged", 185.0)]
    fused.append(("combine", 39.0))
    assert list(layer_kernels.sorted_into_parts(fused).values()) == [10.0, 0, 370.0, 0, 185.0, 39.0]
    by_parts = [("route_count", 4.0), ("gather", 50.0), ("hopper_ragged", 355.0), ("activate", 40.0)]
    by_parts += [("hopper_ragged", 185.0), ("combine", 39.0)]
    assert list(layer_kernels.sorted_into_parts(by_parts).values()) == [4.0, 50.0, 355.0, 40.0, 185.0, 39.0]
    with pytest.raises(ArithmeticError, match="0 products among"):
        layer_kernels.sorted_into_parts([("route_count", 4.0), ("combine", 39.0)])


def test_a_process_that_dies_loses_no_other_row(monkeypatch, capsys):
    begun, kept = [], []

    def rows_of_process(names, quick):
        begun.append(list(names))
        for name in begun[-1]:
            if name == "7B":
                return  # as if killed
            yield {"layer": name, "failed": {}}
            if name == "30B":
                return  # while it was profiled
            yield {"layer": name, "failed": {}, "kernels": {}}

    monkeypatch.setattr(layer, "rows_of_process", rows_of_process)
    rows = layer.run(names=["Qwen3-30B", "7B", "30B"], keep=lambda rows: kept.append(len(rows)))
    assert begun == [["Qwen3-30B", "7B", "30B"], ["7B", "30B"], ["30B"]]
    assert [(row["layer"], "all" in row["failed"]) for row in rows] == [
        ("Qwen3-30B", False),
        ("7B", True),
        ("30B", False),
    ]
    assert ["kernels" in row for row in rows] == [True, False, False]
    assert kept == [1, 1, 3] and "Qwen3-30B: not timed" in capsys.readouterr().out


def test_a_run_of_other_parts_writes_no_pictures_of_layers(tmp_path):
    report.write({"environment": {}}, tmp_path, tmp_path / "figures")
    assert [path.name for path in tmp_path.iterdir()] == ["results.md"]


def test_a_layer_may_be_of_another_batch():
    assert layer_named("Mixtral") is LAYERS["Mixtral"]
    one = layer_named("Qwen3-30B decode@1")
    assert (one.tokens, one.rows, one.experts) == (1, 8, 128)
    for wrong in ("Mixtrel", "Mixtral@", "Mixtral@-1", "@4"):
        with pytest.raises(ValueError, match="is no layer: there are Qwen3-30B"):
            layer_named(wrong)
