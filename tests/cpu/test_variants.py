"""What gets compiled: the tables against the kernels that they are for, the predicate, names and guarantees."""

import dataclasses
import json

import pytest

from aot.build.toolchain import Toolchain
from aot.emit import golden
from aot.emit.manifest import manifest_text
from aot.spec.arch import ARCHS
from aot.spec.kernels import FP8_OUTPUTS, KERNELS
from aot.spec.variants import Config, Variant, config_of, dtypes_of, fits, table_rows, variants

WHEEL = list(variants([80, 90]))


def test_names_are_unique_and_sorted():
    names = [variant.name for variant in WHEEL]
    assert names == sorted(set(names))


def test_a_name_says_the_output_dtype_where_it_is_not_that_of_the_inputs():
    names = {(variant.dtype, variant.out): variant.name for variant in WHEEL if variant.kernel == "hopper_ragged"}
    assert names["e4m3", "fp32"].startswith("hopper_ragged_sm90_e4m3_fp32_nt_a16_")
    assert names["e4m3", "e4m3"].startswith("hopper_ragged_sm90_e4m3_nt_a16_")
    assert names["e5m2", "fp32"].startswith("hopper_ragged_sm90_e5m2_fp32_nt_a16_")


def test_a_wheel_is_at_most_860_variants():
    assert len(WHEEL) <= 860


@pytest.mark.parametrize("sm", [80, 90])
def test_every_row_of_a_table_is_compiled(sm):
    compiled = {(v.kernel, v.config, v.alignment, v.dtype) for v in WHEEL if v.sm == sm}
    for kernel in KERNELS.values():
        if kernel.name == "pack" or not kernel.runs_on(ARCHS[sm]):
            continue
        for row in table_rows(kernel.name, sm):
            for dtype in dtypes_of(row):
                assert (kernel.name, config_of(row), row["alignment"], dtype) in compiled, row


@pytest.mark.parametrize("sm", [80, 90])
def test_whatever_a_kernel_is_for_is_compiled_in_some_config(sm):
    compiled = {(v.kernel, v.dtype, v.out, v.layout, v.alignment) for v in WHEEL if v.sm == sm and v.dtype != "e5m2"}
    wanted = {
        (kernel.name, dtype, out, layout, alignment)
        for kernel in KERNELS.values()
        if kernel.runs_on(ARCHS[sm])
        for dtype in (*kernel.dtypes, "e4m3")
        for alignment in kernel.layouts | kernel.fp8_layouts
        for out, layout in kernel.forms(ARCHS[sm], dtype, alignment)
        # What is aligned goes to hopper_ragged and its kin there, which are faster.
        if (sm, alignment) != (90, 16)
        or kernel.name not in ("basic_ragged", "basic_gated", "basic_ragged_k", "basic_stack")
    }
    assert wanted == compiled


@pytest.mark.parametrize("sm", ARCHS)
def test_fp8_is_compiled_for_hopper_alone(sm):
    for dtype, outs in FP8_OUTPUTS.items():
        assert {v.out for v in variants([sm]) if v.dtype == dtype} == (set(outs) if sm == 90 else set())


def test_e5m2_is_compiled_for_ragged_rows_in_each_scale_mode_and_for_ragged_k():
    kernels = {(v.kernel, v.out) for v in WHEEL if v.dtype == "e5m2"}
    families = ("basic_ragged", "hopper_ragged")
    names = {f"{family}{mode}" for family in families for mode in ("", "_row_scales", "_block_scales")}
    names |= {f"{family}_k_block_scales" for family in families} | {"hopper_ragged_tensor_scales"}
    assert kernels == {(name, out) for name in names for out in FP8_OUTPUTS["e5m2"]}


BASIC = Variant("basic", 80, "fp16", "fp16", "nn", 16, Config(64, 64, 64, 3, 4))
HOPPER = Variant("hopper", 90, "bf16", "bf16", "nn", 16, Config(128, 128, 64, 4, 4, consumers=2))
FP8 = Variant("hopper_ragged", 90, "e4m3", "bf16", "nt", 16, Config(64, 128, 128, 6, 4, consumers=2))
WIDE = Variant(
    "hopper_ragged_block_scales", 90, "e4m3", "bf16", "nt", 16,
    Config(128, 192, 128, 4, 4, consumers=2, split=2, slices=3),
)  # fmt: skip
ALONG_K_WIDE = Variant(
    "hopper_ragged_k_block_scales", 90, "e4m3", "fp32", "nt", 16,
    Config(128, 192, 128, 4, 4, consumers=2, split=2, slices=6),
)  # fmt: skip
CLUSTERED = Variant(
    "hopper_ragged_block_scales", 90, "e4m3", "bf16", "nt", 16,
    Config(128, 256, 128, 4, 4, consumers=2, split=2, slices=4, cluster=2),
)  # fmt: skip
ADDED_TO = Variant(
    "hopper_ragged_k", 90, "bf16", "fp32", "tn", 16, Config(128, 256, 64, 3, 4, consumers=2, split=2, slices=4)
)
ALONG_K_SCALED = Variant(
    "hopper_ragged_k_block_scales", 90, "e4m3", "bf16", "nt", 16,
    Config(128, 128, 128, 4, 4, consumers=2, split=2, slices=2),
)  # fmt: skip
QUANTIZE = next(v for v in WHEEL if v.kernel == "quantize")
SWAPPED = Variant("hopper_ragged", 90, "fp16", "fp16", "nt", 16, Config(16, 64, 128, 10, 4))
FITTED = Variant(
    "hopper_ragged_fitted", 90, "bf16", "bf16", "nt", 16, Config(192, 256, 64, 4, 4, consumers=2, split=6, slices=2)
)
GATED = Variant("hopper_gated", 90, "bf16", "bf16", "nt", 16, Config(64, 256, 64, 5, 4, consumers=2, slices=2))
PAIRS = Variant("hopper_gated_pairs", 90, "bf16", "bf16", "nn", 16, Config(128, 256, 64, 4, 8))
ALONG_K = Config(128, 128, 64, 6, 4, consumers=2, slices=2)
GATED_SWAPPED = Variant("hopper_gather_gated", 90, "bf16", "bf16", "nt", 16, Config(16, 128, 128, 6, 4))
REFUSED = {
    "an architecture that the kernel is not for": (HOPPER, {"sm": 80}, "hopper is for sm_90"),
    "a block that is no power of two": (BASIC, {"block_n": 96}, "powers of two"),
    "too many accumulators": (BASIC, {"block_m": 128, "block_n": 256}, "more than 128 accumulators"),
    "too much shared memory": (BASIC, {"stages": 16}, "a block has 166912"),
    "too many loads one by one": (BASIC, {"alignment": 2, "block_k": 128}, "more than 32 a thread"),
    "outputs that leave no room": (HOPPER, {"stages": 6}, "a block has 232448"),
    "rows that do not fill a warp's product": (HOPPER, {"block_m": 64, "warps": 8}, "a warp multiplies 16 rows"),
    "columns that do not fill it where operands are swapped": (SWAPPED, {"warps": 8}, "a warp multiplies 16 rows"),
    "few rows in two groups": (SWAPPED, {"stages": 4, "consumers": 2}, "less than 64 rows has one consumer group"),
    "few rows in slices": (SWAPPED, {"block_n": 128, "stages": 4, "slices": 2}, "is written out whole"),
    "a narrow box of A's rows": (HOPPER, {"layout": "tn", "block_m": 32, "warps": 2}, "128 bytes wide"),
    "a narrow box of outputs": (HOPPER, {"slices": 4, "stages": 3}, "128 bytes wide"),
    "a narrow box of e4m3": (FP8, {"block_k": 64}, "128 bytes wide"),
    "a narrow box of e4m3 outputs": (FP8, {"out": "e4m3", "block_n": 64}, "128 bytes wide"),
    "two sets of accumulators": (FP8, {"block_n": 256, "stages": 3}, "more than 64 accumulators"),
    "e4m3 written out ahead": (FP8, {"out": "fp32", "stages": 3, "consumers": 1, "slices": 4}, "without promotion"),
    "half a narrow box of gated outputs": (GATED, {"block_n": 128}, "128 bytes wide"),
    "gate and up of few rows in half a warp's columns": (GATED_SWAPPED, {"block_n": 64}, "128 bytes wide"),
    "columns in turns of few rows": (PAIRS, {"block_m": 16, "warps": 4}, "are in one thread only as halves"),
    "columns in turns written out ahead": (PAIRS, {"slices": 2}, "rounded in pairs of neighbouring columns"),
    "gated outputs that leave no room": (GATED, {"stages": 6}, "a block has 232448"),
    "fitted tiles of fewer columns": (FITTED, {"block_n": 128}, "fitted tiles have 192 rows at most"),
    "fitted tiles that leave no room": (FITTED, {"stages": 5}, "a block has 232448"),
    "192 columns without scales": (WIDE, {"kernel": "hopper_ragged"}, "powers of two"),
    "192 columns along a ragged K in five stages": (ALONG_K_WIDE, {"stages": 5}, "a block has 232448"),
    "192 columns along a ragged K in three slices of float32": (ALONG_K_WIDE, {"slices": 3}, "a block has 232448"),
    "192 columns along a ragged K in narrow boxes": (ALONG_K_WIDE, {"out": "bf16"}, "128 bytes wide"),
    "192 columns in another number of slices": (WIDE, {"slices": 1}, "three parts"),
    "192 columns of 32 rows a group": (WIDE, {"block_m": 64}, "three parts"),
    "192 columns of e4m3 outputs": (WIDE, {"out": "e4m3"}, "128 bytes wide"),
    "scales of 192 columns that leave no room": (WIDE, {"out": "fp32"}, "a block has 232448"),
    "clusters of rows by an index": (CLUSTERED, {"kernel": "hopper_gather_block_scales"}, "ragged rows of fp8"),
    "clusters of stacks": (CLUSTERED, {"kernel": "hopper_stack_block_scales"}, "ragged rows of fp8"),
    "clusters of four": (CLUSTERED, {"cluster": 4}, "clusters have two CTAs"),
    "clusters of an odd number of stages": (CLUSTERED, {"stages": 3}, "an even number of stages"),
    "clusters of 192 columns": (CLUSTERED, {"block_n": 192, "slices": 3}, "tiles of 256 columns"),
    "slots with subtiles of one group": (ADDED_TO, {"slices": 2}, "a subtile of both consumer groups"),
    "more slots than the ring has": (ADDED_TO, {"slices": 1}, "a subtile of both consumer groups"),
    "one subtile for two buffers": (ALONG_K_SCALED, {"slices": 1}, "two buffers in turns"),
    "tiles in turns of groups that promote in parts": (
        CLUSTERED,
        {"split": 1, "cluster": 1, "block_m": 64},
        "share each",
    ),
    "scales of fewer columns": (QUANTIZE, {"block_n": 64}, "a scale is for 128 columns"),
    "outputs of 4 bytes": (FP8, {"out": "fp32", "stages": 7}, "a block has 232448"),
}


def changed(variant: Variant, change: dict) -> Variant:
    """The variant with other fields, of its own or of its config."""
    fields = {field.name for field in dataclasses.fields(Variant)}
    config = {name: value for name, value in change.items() if name not in fields}
    own = {name: value for name, value in change.items() if name in fields}
    return dataclasses.replace(variant, config=dataclasses.replace(variant.config, **config), **own)


@pytest.mark.parametrize("variant, change, reason", REFUSED.values(), ids=REFUSED)
def test_the_predicate_gives_its_reason(variant, change, reason):
    assert fits(variant, ARCHS[variant.sm]) is None
    refused = changed(variant, change)
    assert reason in fits(refused, ARCHS[refused.sm])


def test_the_predicate_counts_all_shared_memory_that_a_kernel_takes(built):
    """With a byte less than the kernel has it would not fit."""
    for variant in WHEEL:
        if variant.name in built and KERNELS[variant.kernel].multiplies:
            less = built[variant.name]["launch"]["shared_bytes"] - 1
            assert fits(variant, dataclasses.replace(ARCHS[variant.sm], shared_bytes=less)), variant.name


def test_the_predicate_counts_outputs_in_their_own_bytes():
    for change in ({"out": "bf16", "stages": 7}, {"out": "e4m3"}, {"slices": 2, "out": "fp32", "stages": 7}):
        assert fits(changed(FP8, change), ARCHS[90]) is None


def test_a_gated_output_takes_half_the_room():
    """The same stages and slices do not fit where each column of sums is one of the output."""
    assert fits(GATED, ARCHS[90]) is None
    assert "a block has 232448" in fits(changed(GATED, {"kernel": "hopper_ragged"}), ARCHS[90])


def test_guarantees_of_the_ragged_kernels_cover_offs_and_the_stride_of_the_groups():
    text = manifest_text(golden.samples(), Toolchain("3.9.0", "12.9", "digest"), "")
    guarantees = {entry["kernel"]: entry["guarantees"] for entry in json.loads(text)["artifacts"].values()}
    shared = {
        "pointer_bytes": 16,
        "sizes": "below 2**31",
        "offs": "int32, contiguous, any values",
        "unit_stride": {"A": "last", "B": "first", "C": "last"},
        "leading_stride_bytes": 16,
        "group_stride_bytes": 16,
    }
    every = {"A": 16, "B": 16, "C": 16}
    assert guarantees["basic_ragged"] == shared | {"contiguous_extent_bytes": every, "minimum_K": 0}
    tma = {"minimum_K": 1, "minimum_E": 1, "maximum_E": 2**23 - 1, "maximum_size": 2**31 - 256, "maximum_rows": 2**30}
    tma |= {"contiguous_extent_bytes": {"C": 16}, "maximum_row_stride": 2**33 - 1}
    assert guarantees["hopper_ragged"] == shared | tma
    assert "offs" not in guarantees["hopper"] and "group_stride_bytes" not in guarantees["tma"]


def test_guarantees_of_a_ragged_k_count_it_back_or_take_a_promise():
    samples = [Variant("hopper_ragged_k", 90, "bf16", "bf16", "tn", 16, ALONG_K), ALONG_K_WIDE]
    text = manifest_text([golden.sample(one) for one in samples], Toolchain("3.9.0", "12.9", "digest"), "")
    back, promised = (json.loads(text)["artifacts"][one.name]["guarantees"] for one in samples)
    assert back["maximum_K"] == 2**30 and "k_alignment" not in back
    assert promised["k_alignment"] == 128 and "maximum_K" not in promised


@pytest.mark.parametrize(("kernel", "operand"), [("hopper_gather_k", "A"), ("hopper_gather_k_b", "B")])
def test_guarantees_of_kernels_that_gather_along_k_cover_the_rows_that_they_copy(kernel, operand):
    samples = [Variant(one, 90, "bf16", "bf16", "tn", 16, ALONG_K) for one in ("hopper_ragged_k", kernel)]
    text = manifest_text([golden.sample(one) for one in samples], Toolchain("3.9.0", "12.9", "digest"), "")
    plain, gathers = (json.loads(text)["artifacts"][one.name]["guarantees"] for one in samples)
    besides = {"contiguous_extent_bytes": {operand: 16, "C": 16}}
    besides |= {"maximum_row_stride": 2**32 - 1, "maximum_row_bytes": 2**31 - 1}
    besides[f"maximum_bytes_of_{operand}"] = 2**36 - 17
    assert gathers == plain | besides


BY_AN_INDEX = {
    "contiguous_extent_bytes": {"A": 16, "C": 16}, "maximum_bytes_of_A": 2**36 - 17, "maximum_row_stride": 2**32 - 1,
    "maximum_row_bytes": 2**31 - 1,
}  # fmt: skip


@pytest.mark.parametrize(("kernel", "layout", "besides"), [
    ("hopper_gated", "nt", {}),
    ("hopper_gated", "nn", {"half_of_N_bytes": 16}),
    ("hopper_gather", "nn", BY_AN_INDEX),
    ("hopper_gather_gated", "nn", BY_AN_INDEX | {"half_of_N_bytes": 16}),
])  # fmt: skip
def test_guarantees_of_fused_kernels_cover_halves_of_b_and_rows_by_an_index(kernel, layout, besides):
    samples = [Variant(one, 90, "bf16", "bf16", layout, 16, GATED.config) for one in ("hopper_ragged", kernel)]
    text = manifest_text([golden.sample(one) for one in samples], Toolchain("3.9.0", "12.9", "digest"), "")
    plain, fused = (json.loads(text)["artifacts"][one.name]["guarantees"] for one in samples)
    assert fused == plain | besides
