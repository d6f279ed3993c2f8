"""Which variant a ragged product takes: one whose guarantees hold, the cheapest of them, and one for every product."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import gg_runtime
from aot.spec.kernels import KERNELS as KERNEL_ROWS
from aot.spec.tables import LAYER, layer_rows
from aot.spec.variants import TABLES
from aot.tuning.layers import load_of, rows_at
from arrays import FULL_NAMES, ExchangeArray, fresh_address, matrix, ragged
from devices import A100, DEVICES, H200
from embedded import KERNELS
from gg_runtime import _C

BYTES = {"float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float32": 4}
extents = st.integers(1, 40) | st.integers(1, 40).map(lambda n: 16 * n) | st.integers(0, 2)


@st.composite
def products(draw, dtypes=("float16", "bfloat16", "float8_e4m3fn")):
    """mat_a, mat_b, offs and out, with pads, offsets and strides that break one guarantee or another."""
    rows, columns, depth = (draw(extents) for _ in range(3))
    groups, dtype = draw(st.integers(0, 5)), draw(st.sampled_from(dtypes))
    layout, pad = draw(st.sampled_from(["nn", "nt", "tn", "tt"])), draw(st.sampled_from([0, 16, 8, 1]))
    mat_a, mat_b, offs = ragged(rows, columns, depth, groups, layout=layout, pad=pad, dtype=dtype)
    outputs = ["float16", "bfloat16", "float32", "float8_e4m3fn"] if dtype == "float8_e4m3fn" else [dtype]
    out = matrix(rows, columns, order=draw(st.sampled_from("nnnt")), pad=draw(st.sampled_from([0, 16, 1])),
                 dtype=draw(st.sampled_from(outputs)))  # fmt: skip
    for array in draw(st.lists(st.sampled_from([mat_a, mat_b, out]), max_size=1)):
        array.address += BYTES[array.dtype]
    if draw(st.integers(0, 9)) == 0:
        mat_b.strides = tuple(draw(st.sampled_from([0, -1])) * s if s > 1 else s for s in mat_b.strides)
    return mat_a, mat_b, offs, out


def explain(product, device, **others):
    mat_a, mat_b, offs, out = product
    return gg_runtime.explain(mat_a, mat_b, offs=offs, out=out, device=device, **others)


@given(products(("float16", "bfloat16")), st.sampled_from(sorted(DEVICES)), st.booleans())
def test_every_product_has_a_variant_that_the_device_can_launch(product, name, batch_invariant):
    device = DEVICES[name]
    chosen = explain(product, device, batch_invariant=batch_invariant)
    if 0 in product[3].shape:
        assert (chosen.variant, chosen.launches) == (None, 0)
        return
    assert chosen.variant in _C.eligible(device["sm"], device["shared_bytes_per_block"])
    assert chosen.launches == 1 and chosen.predicted_us > 0
    assert chosen == explain(product, device, batch_invariant=batch_invariant)


@given(products(), st.booleans())
def test_the_choice_is_the_cheapest_candidate_of_its_dtypes_or_a_measured_row(product, batch_invariant):
    chosen = explain(product, H200, batch_invariant=batch_invariant)
    usable = {c["variant"]: c["predicted_us"] for c in chosen.candidates if c["ruled_out"] is None}
    assert (chosen.variant is None) == (0 in product[3].shape)
    if chosen.reason.startswith("measured"):
        assert chosen.variant in usable and not batch_invariant
    elif chosen.variant:
        assert usable[chosen.variant] == chosen.predicted_us == min(usable.values())
    for candidate in chosen.candidates:
        kernel = KERNELS[candidate["variant"]]
        assert kernel["form"] == "grouped"
        assert (FULL_NAMES[kernel["dtype"]], FULL_NAMES[kernel["out_dtype"]]) == (product[0].dtype, product[3].dtype)


def keeps(guarantees: dict, product) -> bool:
    """Whether the product keeps what the manifest says a variant was compiled for."""
    mat_a, mat_b, _offs, out = product
    if "unit_stride" not in guarantees:
        return True
    if mat_a.shape[1] < guarantees.get("minimum_K", 0) or mat_b.shape[0] < guarantees.get("minimum_E", 0):
        return False
    most = guarantees.get("maximum_size", 2**31 - 1)
    if max(*mat_a.shape, *mat_b.shape[1:]) > most or mat_a.shape[0] > guarantees.get("maximum_rows", most):
        return False
    if max(mat_a.strides[0], out.strides[0]) > guarantees.get("maximum_row_stride", 2**63) and mat_a.shape[0] > 1:
        return False
    for operand, array in zip("ABC", (mat_a, mat_b, out)):
        size = BYTES[array.dtype]
        shape, strides = array.shape[-2:], array.strides[-2:]
        inner, outer = (0, 1) if guarantees["unit_stride"][operand] == "first" else (1, 0)
        leading = [strides[outer]] * (shape[outer] > 1)
        if operand == "B":
            leading += [array.strides[0]] * (array.shape[0] > 1)
        if (
            array.address % guarantees["pointer_bytes"]
            or (shape[inner] > 1 and strides[inner] != 1)
            or any(size * stride % guarantees.get("leading_stride_bytes", 1) for stride in leading)
            or size * shape[inner] % guarantees.get("contiguous_extent_bytes", {}).get(operand, 1)
        ):
            return False
    return True


def product_of(rows=64, columns=64, depth=64, groups=4, a_stride=None, c_stride=None):
    mat_a, mat_b, offs = ragged(rows, columns, depth, groups, layout="nt")
    out = matrix(rows, columns)
    mat_a.strides = (a_stride or mat_a.strides[0], 1)
    out.strides = (c_stride or out.strides[0], 1)
    mat_a.address, mat_b.address, out.address = 1 << 50, 1 << 51, 1 << 52  # far apart
    return mat_a, mat_b, offs, out


@given(products())
@example(product_of(groups=0))
@example(product_of(columns=2**31 - 256))
@example(product_of(columns=2**31 - 248))
@example(product_of(depth=2**31 - 256))
@example(product_of(depth=2**31 - 248))
@example(product_of(rows=2**30, columns=8, depth=8))
@example(product_of(rows=2**30 + 1, columns=8, depth=8))
@example(product_of(a_stride=2**33 - 8))
@example(product_of(a_stride=2**33))
@example(product_of(c_stride=2**33 - 8))
@example(product_of(c_stride=2**33))
def test_a_variant_is_usable_exactly_if_its_guarantees_in_the_manifest_hold(product):
    manifest = gg_runtime.manifest()["artifacts"]
    reversed_or_repeated = any(stride <= 0 for array in product for stride in array.strides)
    for candidate in explain(product, H200).candidates:
        holds = keeps(manifest[candidate["variant"]]["guarantees"], product)
        if candidate["ruled_out"] is None:
            assert holds, candidate
        elif not reversed_or_repeated and "shared memory" not in candidate["ruled_out"]:
            assert not holds, candidate


@pytest.mark.parametrize("direction", [-1, 0])
@pytest.mark.parametrize("which", ["mat_a", "mat_b", "stack", "out"])
@pytest.mark.parametrize("layout", ["nn", "nt"])
def test_no_descriptor_is_made_of_a_reversed_or_repeated_matrix(layout, which, direction):
    mat_a, mat_b, offs = ragged(64, 64, 64, 3, layout=layout)
    product = (mat_a, mat_b, offs, matrix(64, 64))
    assert "hopper_ragged" in kernels_for(product)
    array = {"mat_a": mat_a, "mat_b": mat_b, "stack": mat_b, "out": product[3]}[which]
    turned = [direction * stride if stride == 64 else stride for stride in array.strides]
    array.strides = (direction * 4096, *array.strides[1:]) if which == "stack" else tuple(turned)
    if which == "out" and direction == 0:
        return  # refused: its elements would share memory
    assert kernels_for(product) == {"basic_ragged"}


@pytest.mark.parametrize("layout", ["tn", "tt"])
def test_rows_that_lie_side_by_side_take_no_descriptor(layout):
    """A group may start at any of them, and a TMA box does not."""
    mat_a, mat_b, offs = ragged(64, 64, 64, 3, layout=layout)
    assert kernels_for((mat_a, mat_b, offs, matrix(64, 64))) == {"basic_ragged"}


@pytest.mark.parametrize("rows, descriptors", [(2**30, True), (2**30 + 1, False)])
def test_the_descriptor_of_the_output_counts_up_to_2_to_the_30_rows(rows, descriptors):
    mat_a, mat_b, offs = ragged(rows, 64, 64, 3, layout="nt")
    candidates = gg_runtime.explain(mat_a, mat_b, offs=offs, device=H200).candidates
    usable = {KERNELS[candidate["variant"]]["kernel"] for candidate in candidates if not candidate["ruled_out"]}
    assert ("hopper_ragged" in usable) == descriptors and "basic_ragged" in usable


def kernels_for(product) -> set[str]:
    candidates = explain(product, H200).candidates
    return {KERNELS[candidate["variant"]]["kernel"] for candidate in candidates if not candidate["ruled_out"]}


@given(st.integers(1, 2**17), st.integers(1, 512), st.sampled_from([256, 2048, 7168]))
@example(1330, 264, 256)  # no group has a second tile of 64 rows, however many are empty
def test_predicted_times_rise_with_the_rows(rows, groups, columns):
    def predicted(rows):
        mat_a, mat_b, offs = ragged(rows, columns, 2048, groups, layout="nt")
        seen = gg_runtime.explain(mat_a, mat_b, offs=offs, device=H200)
        return {c["variant"]: c["predicted_us"] for c in seen.candidates if not c["ruled_out"]}

    fewer, more = predicted(rows), predicted(4 * rows)
    assert all(fewer[variant] <= 1.02 * more[variant] for variant in fewer.keys() & more.keys())


@pytest.mark.parametrize(("rows", "groups"), [(16, 8), (128, 128), (4096, 128), (32768, 8)])
def test_a_batch_invariant_choice_is_the_same_for_every_batch(rows, groups):
    mat_a, mat_b, offs = ragged(rows, 2048, 7168, groups, layout="nt")
    chosen = gg_runtime.explain(mat_a, mat_b, offs=offs, device=H200, batch_invariant=True)
    reference = ragged(1000, 2048, 7168, 64, layout="nt")
    other = gg_runtime.explain(*reference[:2], offs=reference[2], device=H200, batch_invariant=True)
    assert (chosen.variant, chosen.predicted_us) == (other.variant, other.predicted_us)


ROWS = {
    tuple(row[name] for name in LAYER): row
    for row in layer_rows(TABLES / "H200", "NVIDIA H200")
    if (KERNEL_ROWS[row["kernel"]].epilogue, KERNEL_ROWS[row["kernel"]].source) == ("linear", "rows")
}
MEASURED = "measured on NVIDIA H200: E, N, K and about this many rows have a row in the tables"


ROUGH = "cost model with rough rates, as this variant was measured on no GPU"


def layer(experts, columns, depth, rows, *, layout="nt", dtype="bf16", **how):
    mat_a, mat_b, offs = ragged(rows, columns, depth, experts, layout=layout, dtype=FULL_NAMES[dtype])
    return gg_runtime.explain(mat_a, mat_b, offs=offs, device=H200, **how)


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("layout", ["nn", "nt"])
def test_a_measured_load_of_a_layer_takes_the_variant_that_won(layout, dtype):
    assert ROWS
    for (*sizes, load), row in ROWS.items():
        chosen = layer(*sizes, rows_at(load, sizes[0]), layout=layout, dtype=dtype)
        won = f"{row['kernel']}_sm90_{dtype}_{layout}_a16_{row['config']}"
        assert (chosen.variant, chosen.reason) == (won, MEASURED), row


def test_a_row_is_for_its_load_alone():
    """Which is a quarter of a doubling of rows to either side: selection and tuner round alike."""
    for experts, columns, depth, load in ROWS:
        least, most = (experts * 2 ** ((load + side) / 2) for side in (-0.5, 0.5))
        for rows in (math.floor(least), math.ceil(least), math.floor(most), math.ceil(most)):
            chosen = layer(experts, columns, depth, rows)
            row = ROWS.get((experts, columns, depth, load_of(rows, experts)))
            assert (chosen.reason == MEASURED) == bool(row), (experts, columns, depth, rows)
            assert not row or chosen.variant.endswith(f"_{row['config']}")
        assert load_of(math.floor(least), experts) != load != load_of(math.ceil(most), experts)


@pytest.mark.parametrize("change", [0, 1, 2], ids=["E", "N", "K"])
def test_a_row_is_for_its_layer_alone(change):
    for *sizes, load in ROWS:
        rows = rows_at(load, sizes[0])
        sizes[change] += 16
        if (*sizes, load_of(rows, sizes[0])) not in ROWS:
            assert layer(*sizes, rows).reason.startswith("cost model"), sizes


def test_a_batch_invariant_choice_sees_the_stride_of_groups_that_are_not_there():
    """Matrices 2 bytes further apart than they are large: TMA reads no stack of them, not even of one."""
    chosen = set()
    for groups in (1, 2, 3):
        mat_a, mat_b, offs = ragged(64, 512, 256, groups, layout="nt")
        mat_b.strides = (512 * 256 + 1, 1, 256)
        chosen.add(gg_runtime.explain(mat_a, mat_b, offs=offs, device=H200, batch_invariant=True).variant)
    assert len(chosen) == 1


def test_a_batch_invariant_choice_takes_no_row():
    for *sizes, load in ROWS:
        chosen = layer(*sizes, rows_at(load, sizes[0]), batch_invariant=True)
        assert chosen.reason.startswith("cost model")
        assert chosen.variant == layer(*sizes, 1, batch_invariant=True).variant


def test_a_row_whose_variant_cannot_take_the_tensors_is_passed_over():
    *sizes, load = next(iter(ROWS))
    mat_a, mat_b, offs = ragged(rows_at(load, sizes[0]), *sizes[1:], sizes[0], layout="nt", dtype="bfloat16")
    assert gg_runtime.explain(mat_a, mat_b, offs=offs, device=H200).reason == MEASURED
    mat_a.address += 2
    chosen = gg_runtime.explain(mat_a, mat_b, offs=offs, device=H200)
    assert (KERNELS[chosen.variant]["alignment"], chosen.reason.partition(":")[0]) == (2, ROUGH)


def test_rows_for_one_architecture_serve_no_other():
    *sizes, load = next(iter(ROWS))
    mat_a, mat_b, offs = ragged(rows_at(load, sizes[0]), *sizes[1:], sizes[0], layout="nt", dtype="bfloat16")
    assert gg_runtime.explain(mat_a, mat_b, offs=offs, device=A100).reason.startswith("cost model")


def test_an_explanation_reads_as_text():
    mat_a, mat_b, offs = ragged(64, 64, 64, 3)
    seen = gg_runtime.explain(mat_a, mat_b, offs=offs, device=H200)
    lines = str(seen).splitlines()
    assert seen.variant in lines[0] and "cost model" in lines[1] and "1 launch(es)" in lines[1]
    assert len(lines) == 2 + len(seen.candidates) - 1


def scaled(rows, columns, depth, groups, mode):
    """The choice for an e4m3 product with scales, rows in bfloat16."""
    mat_a, mat_b, offs = ragged(rows, columns, depth, groups, layout="nt", dtype="float8_e4m3fn")
    blocks = -(-depth // 128)
    scale_a, scale_b = {
        "row": ((rows,), (groups, columns)),
        "block": ((rows, blocks), (groups, -(-columns // 128), blocks)),
    }[mode]
    scale_a, scale_b = (ExchangeArray(*shape, address=fresh_address(), dtype="float32") for shape in (scale_a, scale_b))
    return gg_runtime.explain(
        mat_a, mat_b, offs=offs, out_dtype="bfloat16", scale_a=scale_a, scale_b=scale_b, device=H200
    )


@pytest.mark.parametrize("mode", ["row", "block"])
def test_tiles_of_192_columns_are_counted_by_their_own_width(mode):
    """They are no power of two. A tile costs about as much as its columns, those past N among them."""
    for columns in (1536, 2048, 4096, 3072 + 64):
        predicted = {
            KERNELS[one["variant"]]["block_n"]: one["predicted_us"]
            for one in scaled(32768, columns, 2048, 128, mode).candidates
            if one["ruled_out"] is None and KERNELS[one["variant"]]["block_m"] == 128
        }
        width = {block: -(-columns // block) * block for block in (192, 256)}
        ratio = predicted[192] / predicted[256] * width[256] / width[192]
        assert 0.9 < ratio < 1.1, (columns, predicted)


def test_arrays_of_scales_of_blocks_may_have_one_element_each():
    """They are not scales of tensors, or the bits of a row would depend on the number of rows."""
    for rows in (1, 2, 100):
        assert "_block_scales_" in scaled(rows, 128, 128, 1, "block").variant


@pytest.mark.parametrize(("groups", "kernel"), [(2**23 - 1, "hopper_ragged"), (2**23, "basic_ragged")])
def test_tma_serves_fewer_groups_than_2_23(groups, kernel):
    mat_a, mat_b, offs = ragged(1024, 64, 64, groups, layout="nt", dtype="bfloat16")
    mat_b.address, offs.address = 2**45, 2**46  # behind all others, whose places are nearer than these are long
    chosen = explain((mat_a, mat_b, offs, matrix(1024, 64, dtype="bfloat16")), H200)
    assert chosen.variant.startswith(kernel), chosen.variant


@pytest.mark.parametrize(
    ("ragged_k", "size", "launches"),
    [(False, 2**30, 2), (False, 2**30 + 64, 2), (True, 2**30 - 8, 1), (True, 2**30, 2), (True, 2**30 + 64, 2)],
)
def test_rows_by_an_index_are_gathered_in_the_product_up_to_2_31_bytes(ragged_k, size, launches):
    """What is left of a row is counted in 32 bits. (Below that, rows of A by an index are chosen to take two too.)"""
    offs, index = (ExchangeArray(n, address=2**46, dtype="int32") for n in (1, 256))
    if ragged_k:
        mat_a, mat_b = matrix(8, 256, order="t", dtype="bfloat16"), matrix(1, size, dtype="bfloat16")
        given, out = {"b_index": index}, ExchangeArray(1, 8, size, address=2**52, dtype="bfloat16")
    else:
        mat_a, mat_b, _ = ragged(1, 16, size, 1, layout="nt", dtype="bfloat16")
        given, out = {"a_index": index}, matrix(256, 16, dtype="bfloat16")
    mat_a.address, mat_b.address, out.address = 2**47, 2**48, 2**52
    chosen = gg_runtime.explain(mat_a, mat_b, offs=offs, out=out, device=H200, **given)
    assert (chosen.launches, "gather" in chosen.variant) == (launches, launches == 1), chosen.variant
