"""GPUs that the tables were not measured on: no measured row, and predictions scaled by what is known of them."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import gg_runtime
from aot.spec.gpus import gpu_rows, row_named
from aot.spec.tables import LAYER, layer_rows, shape_rows
from aot.spec.variants import TABLES
from aot.tuning.layers import rows_at
from arrays import ExchangeArray, fresh_address, matrix, operands, ragged
from devices import H20, H100_PCIE, H100_SXM, H200, NAMELESS

LISTS = shape_rows(TABLES / "H200", "NVIDIA H200")
ROWS = layer_rows(TABLES / "H200", "NVIDIA H200")
LAYERS = [tuple(row[name] for name in LAYER) for row in ROWS if "epilogue" not in row]  # of plain products
ROWS_OF_H100 = layer_rows(TABLES / "H100_80GB_HBM3", "NVIDIA H100 80GB HBM3")
LAYERS_OF_H100 = [tuple(row[name] for name in LAYER) for row in ROWS_OF_H100 if "epilogue" not in row]
SLICE = H200 | {"name": "NVIDIA H200 MIG 1g.18gb", "multiprocessors": 16}
CUT_DOWN = H200 | {"multiprocessors": 130}
OTHERS = {
    "H20": H20, "H100 PCIe": H100_PCIE, "MIG": SLICE, "cut down": CUT_DOWN, "nameless": NAMELESS,
    "of 78": NAMELESS | {"multiprocessors": 78}, "of 114": NAMELESS | {"multiprocessors": 114},
    "of another name": H200 | {"name": "NVIDIA H2OO"},
}  # fmt: skip
DEEP = (32768, 4096, 7168, 8)  # rows, N, K, E of a product that the tensor cores bound
DECODING = (512, 1536, 2048, 128)  # and of one that memory bounds


def of_list(row: dict, device: dict):
    sizes = [(m, n, k) for m, n, k, count in row["groups"] for _ in range(count)]
    dtype = {"fp16": "float16", "bf16": "bfloat16"}[row["dtype"]]
    A, B, out = operands(sizes, layout=row["layout"], dtype=dtype)
    return gg_runtime.explain(A, B, out=out, device=device)


def of_rows(rows, columns, depth, groups, device, **how):
    mat_a, mat_b, offs = ragged(rows, columns, depth, groups, layout="nt", dtype="bfloat16")
    return gg_runtime.explain(mat_a, mat_b, offs=offs, device=device, **how)


def of_layer(layer, device):
    experts, columns, depth, load = layer
    return of_rows(rows_at(load, experts), columns, depth, experts, device)


def predicted(seen) -> dict[str, float]:
    """With what a call is charged for uploads of its list."""
    return {c["variant"]: c["predicted_us"] + c["upload_us"] for c in seen.candidates if not c["ruled_out"]}


def times_as_long(product, device, variant=None) -> float:
    """As on the H200, of a variant, or of the choice on each."""
    there, here = of_rows(*product, device), of_rows(*product, H200)
    if variant is None:
        return there.predicted_us / here.predicted_us
    return predicted(there)[variant] / predicted(here)[variant]


def test_measured_rows_serve_the_gpu_that_they_were_measured_on():
    for row in LISTS:
        assert of_list(row, H200).reason.startswith("measured on NVIDIA H200: ")
    for layer in LAYERS:
        assert of_layer(layer, H200).reason.startswith("measured on NVIDIA H200: ")
    for layer in LAYERS_OF_H100:
        assert of_layer(layer, H100_SXM).reason.startswith("measured on NVIDIA H100 80GB HBM3: ")


@pytest.mark.parametrize("name", OTHERS)
def test_measured_rows_serve_no_other_gpu(name):
    assert LISTS and LAYERS
    for seen in [*(of_list(row, OTHERS[name]) for row in LISTS), *(of_layer(layer, OTHERS[name]) for layer in LAYERS)]:
        assert seen.reason.startswith(f"cost model measured on NVIDIA H200, scaled to {seen.device} by ")
        assert predicted(seen)[seen.variant] == min(predicted(seen).values())


@pytest.mark.parametrize("facts", [{"clock_mhz": 1000}, {"memory_gb_s": 100}, {"clock_mhz": 5.5, "memory_gb_s": 10**6}])
def test_the_measured_gpu_itself_is_not_scaled(facts):
    for product in (DEEP, DECODING):
        assert of_rows(*product, H200 | facts) == of_rows(*product, H200)


def test_without_a_name_clock_and_memory_rate_only_the_multiprocessors_count():
    for product in (DEEP, DECODING):
        assert predicted(of_rows(*product, NAMELESS)) == predicted(of_rows(*product, H200))
    seen = of_rows(*DEEP, NAMELESS | {"multiprocessors": 66})
    assert seen.predicted_us == pytest.approx(2 * of_rows(*DEEP, NAMELESS).predicted_us, rel=0.1)
    assert seen.reason.partition(":")[0].endswith("scaled to the device described by multiprocessors 66/132")


def test_products_take_as_much_longer_as_the_tensor_cores_are_slower():
    assert times_as_long(DEEP, H20) == pytest.approx(989 / 148, rel=0.1)
    assert times_as_long(DEEP, H100_PCIE) == pytest.approx(989 / 756, rel=0.1)
    A, B, out = operands([(4096, 4096, 4096)] * 4)
    of = {
        name: gg_runtime.explain(A, B, out=out, device=device).predicted_us
        for name, device in {"H20": H20, "H100 SXM": H100_SXM, "H200": H200}.items()
    }
    assert of["H20"] / of["H200"] == pytest.approx(989 / 148, rel=0.15)
    assert of["H100 SXM"] / of["H200"] == pytest.approx(1, rel=0.01)


def test_reading_weights_takes_as_much_longer_as_memory_is_slower():
    for device in (H20, H100_PCIE, H100_SXM):
        ratio = H200["memory_gb_s"] / device["memory_gb_s"]
        assert times_as_long(DECODING, device) == pytest.approx(ratio, rel=0.1)


def test_an_h100_has_figures_of_its_own_for_ragged_rows_and_none_for_lists():
    for layer in LAYERS:
        reason = of_layer(layer, H100_SXM).reason
        assert "measured on NVIDIA H100 80GB HBM3: " in reason and "scaled" not in reason
    for row in LISTS:
        seen = of_list(row, H100_SXM)
        assert seen.reason.startswith("cost model measured on NVIDIA H200, scaled to NVIDIA H100 80GB HBM3 by ")
        assert predicted(seen)[seen.variant] == min(predicted(seen).values())


@pytest.mark.parametrize("mode", ["row", "block"])
def test_an_h100_has_figures_of_its_own_for_scales_of_rows_and_of_blocks(mode):
    rows, n, k, groups = 32768, 4096, 1536, 128
    mat_a, mat_b, offs = ragged(rows, n, k, groups, layout="nt", dtype="float8_e4m3fn")
    of_a, of_b = ((rows,), (groups, n)) if mode == "row" else ((rows, k // 128), (groups, n // 128, k // 128))
    scale_a, scale_b = (ExchangeArray(*shape, address=fresh_address(), dtype="float32") for shape in (of_a, of_b))
    out = matrix(rows, n, dtype="bfloat16")
    given = {"offs": offs, "scale_a": scale_a, "scale_b": scale_b, "out": out}
    seen = gg_runtime.explain(mat_a, mat_b, **given, device=H100_SXM)
    assert "measured on NVIDIA H100 80GB HBM3" in seen.reason and "scaled" not in seen.reason
    assert "_128x256x128_" in seen.variant  # measured 2 to 4 % faster than by 192 columns


def test_a_name_that_no_table_has_is_scaled_by_its_clock():
    slow = NAMELESS | {"name": "NVIDIA H900", "clock_mhz": 990}
    assert times_as_long(DEEP, slow) == pytest.approx(2, rel=0.05)
    assert "scaled to NVIDIA H900 by multiprocessors 132/132 and clock 990/1980 MHz:" in of_rows(*DEEP, slow).reason


def test_a_slice_has_the_tensor_rate_of_its_multiprocessors():
    reason = of_rows(*DEEP, SLICE).reason
    assert "scaled to NVIDIA H200 MIG 1g.18gb by tensor rate 119.9/989 TFLOP/s, clock 1980/1980 MHz and" in reason
    assert times_as_long(DEEP, SLICE) == pytest.approx(132 / 16, rel=0.1)


def test_tiles_of_few_rows_do_not_wait_for_slow_tensor_cores():
    """They wait for their operands on the H200 too, so an H20 of the same clock takes them as fast."""
    variants = predicted(of_rows(*DEEP, H20))
    few, many = (next(v for v in variants if tile in v) for tile in ("_16x64x128_", "_128x256x64_"))
    multiprocessors = 132 / 78
    assert times_as_long(DEEP, H20, many) == pytest.approx(multiprocessors * 3.95, rel=0.05)
    assert times_as_long(DEEP, H20, few) < 0.6 * multiprocessors * 3.95


def test_no_amount_of_shared_memory_is_too_much():
    A, B, out = operands([(4096, 4096, 4096)] * 4, layout="nn", dtype="float16")
    sizes = {"shared_bytes_per_block": 2**31 - 1}, {"shared_bytes_per_block": 2**30}, {}
    most, much, usual = (gg_runtime.explain(A, B, out=out, device=H20 | size) for size in sizes)
    assert most == much
    # A multiprocessor holds more CTAs of some variants, where shared memory is what there is too little of.
    basic = [variant for variant in predicted(usual) if variant.startswith("basic")]
    assert any(predicted(most)[variant] < predicted(usual)[variant] for variant in basic)


def test_a_batch_invariant_choice_is_scaled_as_well():
    on_h20, on_h200 = (of_rows(*DEEP, device, batch_invariant=True) for device in (H20, H200))
    assert on_h20.reason.startswith("cost model measured on NVIDIA H200, scaled to NVIDIA H20 by tensor rate 148/989")
    assert on_h200.reason.startswith("cost model measured on NVIDIA H200: ")
    assert on_h20.predicted_us > 2 * on_h200.predicted_us


def test_what_was_never_measured_says_so():
    for device in (H200, H20):
        mat_a, mat_b, offs = ragged(64, 64, 64, 3, pad=1)
        reason = gg_runtime.explain(mat_a, mat_b, offs=offs, device=device).reason
        assert reason.startswith("cost model with rough rates, as this variant was measured on no GPU: ")


@pytest.mark.parametrize("words", [row["name"] for row in gpu_rows()])
def test_the_selector_finds_the_tensor_rate_that_the_builder_finds(words):
    forms = ("{}", "NVIDIA {}", "NVIDIA {}-XYZ", "({})", "{} NVL", "{}x", "x{}", "NVIDIA{}0", "H20 {}", "{}x {}")
    for name in (form.replace("{}", words) for form in forms):
        reason, row = of_rows(*DEEP, NAMELESS | {"name": name, "multiprocessors": 100}).reason, row_named(name)
        if row:
            rate = 100 * row["tensor_tflop_s"] / row["multiprocessors"]
            assert f" scaled to {name} by tensor rate {rate:.4g}/989 TFLOP/s:" in reason
        else:
            assert f" scaled to {name} by multiprocessors 100/132:" in reason


ANY_INT = st.sampled_from([0, -1, 1, 2, 79, 80, 86, 90, 99, 100, 2**31 - 1, 2**31, 2**63, 2**64]) | st.integers()
ANY_RATE = st.floats() | st.integers() | st.sampled_from([0, 1, 10**6, 10**400, 5e-324, True, "1980", None])
ANYTHING = st.none() | st.booleans() | st.floats() | st.text() | st.binary() | st.lists(st.integers(), max_size=2)
PLAUSIBLE_INT = st.sampled_from([1, 80, 86, 90, 100, 2**31 - 1]) | st.integers(1, 2**31 - 1)


def described(counts, rates, names):
    return st.fixed_dictionaries(
        {"sm": st.sampled_from([80, 90]) | counts, "multiprocessors": counts, "shared_bytes_per_block": counts},
        optional={"name": names, "clock_mhz": rates, "memory_gb_s": rates},
    )


LEGAL_NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)
LEGAL = described(PLAUSIBLE_INT, st.floats(1, 1e6) | st.integers(1, 10**6), LEGAL_NAMES)
WILD = described(ANY_INT | ANYTHING, ANY_RATE | ANYTHING, st.text() | ANYTHING | st.just("\ud800"))
SIZES = st.sampled_from([1, 8, 64, 4096, 2**31 - 256]) | st.integers(1, 2**20)
PRODUCTS = st.tuples(SIZES, SIZES, SIZES, st.sampled_from([1, 2, 128, 4096, 2**31 - 1]), st.booleans())


def answered(device, product):
    """What explain says to a list and to a ragged product, or raises; a crash, a hang or another error fails here."""
    rows, columns, depth, groups, batch_invariant = product
    A, B, _ = operands([(rows, columns, depth)] * min(groups, 3))
    mat_a, mat_b, offs = ragged(rows, columns, depth, groups, layout="nt")
    questions = (
        lambda: gg_runtime.explain(A, B, device=device),
        lambda: gg_runtime.explain(mat_a, mat_b, offs=offs, device=device, batch_invariant=batch_invariant),
    )
    for question in questions:
        try:
            seen = question()
        except (ValueError, TypeError, gg_runtime.UnsupportedError) as error:
            assert str(error)
            continue
        assert seen.variant and 0 < seen.predicted_us < float("inf") and str(seen)
        assert seen.device == device.get("name", "the device described")


@given(LEGAL, PRODUCTS)
@example(H200 | {"multiprocessors": 2**31 - 1, "shared_bytes_per_block": 2**31 - 1}, (1, 1, 1, 1, False))
@example(dict.fromkeys(("sm", "multiprocessors", "shared_bytes_per_block"), 2**31 - 1), (*[2**31 - 256] * 3, 1, True))
@example(H200 | {"name": "NVIDIA H20", "clock_mhz": 1, "memory_gb_s": 1e6}, (2**31 - 256, 64, 64, 2**31 - 1, False))
def test_every_description_within_the_limits_gets_an_answer_or_a_named_error(device, product):
    answered(device, product)


@given(WILD, PRODUCTS)
def test_every_other_description_gets_an_answer_or_a_named_error(device, product):
    answered(device, product)


@given(st.dictionaries(ANYTHING.filter(lambda key: not isinstance(key, list)), ANYTHING) | ANYTHING)
def test_what_is_no_description_gets_a_named_error(device):
    A, B, _ = operands([(64, 64, 64)])
    if device is None:
        return
    with pytest.raises(ValueError if isinstance(device, dict) else TypeError, match="explain: device"):
        gg_runtime.explain(A, B, device=device)


def test_a_fact_whose_conversion_raises_is_refused():
    class Hostile:
        def __index__(self):
            raise RuntimeError("no")

        __float__ = __index__

    A, B, _ = operands([(64, 64, 64)])
    for fact in H200:
        with pytest.raises(ValueError, match=f"device has {fact} = "):
            gg_runtime.explain(A, B, device=H200 | {fact: Hostile()})
