"""Which variant a product of stacks takes: one whose guarantees hold, the cheapest, and one for every product."""

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import gg_runtime
from arrays import ExchangeArray, fresh_address, stacks
from devices import DEVICES, H200
from embedded import KERNELS
from gg_runtime import _C
from scaled_oracle import stack_shapes

extents = st.integers(1, 40) | st.integers(1, 40).map(lambda n: 16 * n) | st.integers(0, 2)


@st.composite
def products(draw):
    """mat_a, mat_b and out, with pads, offsets and strides that break one guarantee or another."""
    rows, columns, depth = (draw(extents) for _ in range(3))
    groups, dtype = draw(st.integers(0, 5)), draw(st.sampled_from(("float16", "bfloat16")))
    layout, pad, gap = draw(st.sampled_from(["nn", "nt", "tn", "tt"])), draw(pads), draw(pads)
    mat_a, mat_b = stacks(groups, rows, columns, depth, layout=layout, pad=pad, gap=gap, dtype=dtype)
    out, _ = stacks(groups, rows, 1, columns, layout=draw(st.sampled_from(["nn"] * 3 + ["tn"])), pad=draw(pads),
                    gap=draw(pads), dtype=dtype)  # fmt: skip
    for array in draw(st.lists(st.sampled_from([mat_a, mat_b, out]), max_size=1)):
        array.address += 2
    return mat_a, mat_b, out


pads = st.sampled_from([0, 16, 8, 1])


def counts_for(product):
    return ExchangeArray(product[0].shape[0], address=fresh_address(), dtype="int32")


def explain(product, device, **others):
    mat_a, mat_b, out = product
    return gg_runtime.explain(mat_a, mat_b, out=out, device=device, **others)


@given(products(), st.sampled_from(sorted(DEVICES)), st.booleans(), st.booleans())
def test_every_product_has_a_variant_that_the_device_can_launch(product, name, masked, batch_invariant):
    device, others = DEVICES[name], {"batch_invariant": batch_invariant}
    if masked:
        others["counts"] = counts_for(product)
    chosen = explain(product, device, **others)
    if 0 in product[2].shape:
        assert (chosen.variant, chosen.launches) == (None, 0)
        return
    assert chosen.variant in _C.eligible(device["sm"], device["shared_bytes_per_block"])
    assert chosen.launches == 1 and chosen.predicted_us > 0
    usable = {c["variant"]: c["predicted_us"] for c in chosen.candidates if c["ruled_out"] is None}
    assert usable[chosen.variant] == min(usable.values())
    assert all(KERNELS[candidate["variant"]]["extents"] == "m_counts" for candidate in chosen.candidates)
    assert chosen == explain(product, device, **others)


def keeps(guarantees: dict, product) -> bool:
    """Whether the product keeps what the manifest says a variant was compiled for."""
    mat_a, mat_b, out = product
    if "unit_stride" not in guarantees:
        return True
    if mat_a.shape[2] < guarantees.get("minimum_K", 0) or mat_a.shape[0] < guarantees.get("minimum_E", 0):
        return False
    most = guarantees.get("maximum_size", 2**31 - 1)
    if max(*mat_a.shape, *mat_b.shape[1:]) > most or mat_a.shape[1] > guarantees.get("maximum_rows", most):
        return False
    for operand, array in zip("ABC", (mat_a, mat_b, out)):
        shape, strides = array.shape[1:], array.strides[1:]
        inner, outer = (0, 1) if guarantees["unit_stride"][operand] == "first" else (1, 0)
        leading = [strides[outer]] * (shape[outer] > 1) + [array.strides[0]] * (array.shape[0] > 1)
        is_long = shape[outer] > 1 and strides[outer] > guarantees.get("maximum_row_stride", 2**63)
        if (
            array.address % guarantees["pointer_bytes"]
            or (operand != "B" and inner == 1 and is_long)
            or (shape[inner] > 1 and strides[inner] != 1)
            or any(2 * stride % guarantees.get("leading_stride_bytes", 1) for stride in leading)
            or 2 * shape[inner] % guarantees.get("contiguous_extent_bytes", {}).get(operand, 1)
        ):
            return False
    return True


def product_of(rows=64, columns=64, depth=64, groups=4, a_row=None, c_row=None, order="n"):
    mat_a, mat_b = stacks(groups, rows, columns, depth, layout=f"{order}t")
    out, _ = stacks(groups, rows, 1, columns)
    mat_a.strides = (mat_a.strides[0], a_row or mat_a.strides[1], mat_a.strides[2])
    out.strides = (out.strides[0], c_row or out.strides[1], 1)
    mat_a.address, mat_b.address, out.address = 1 << 50, 1 << 51, 1 << 52  # far apart
    return mat_a, mat_b, out


@given(products())
@example(product_of(groups=0))
@example(product_of(columns=2**31 - 256))
@example(product_of(columns=2**31 - 248))
@example(product_of(depth=2**31 - 256))
@example(product_of(depth=2**31 - 248))
@example(product_of(rows=2**30, columns=8, depth=8))
@example(product_of(rows=2**30 + 1, columns=8, depth=8))
@example(product_of(a_row=2**33 - 8))
@example(product_of(a_row=2**33))
@example(product_of(c_row=2**33 - 8))
@example(product_of(c_row=2**33))
def test_a_variant_is_usable_exactly_if_its_guarantees_in_the_manifest_hold(product):
    manifest = gg_runtime.manifest()["artifacts"]
    for candidate in explain(product, H200).candidates:
        holds = keeps(manifest[candidate["variant"]]["guarantees"], product)
        assert (candidate["ruled_out"] is None) == holds, candidate


def tile_of(groups, rows, columns, depth, masked) -> int:
    """Rows of the tile that an H200 takes."""
    product = product_of(rows, columns, depth, groups)
    others = {"counts": counts_for(product)} if masked else {}
    return KERNELS[explain(product, H200, **others).variant]["block_m"]


def test_a_masked_product_is_taken_for_one_whose_groups_are_far_from_full():
    """Of DeepEP's layouts of Qwen3-30B and DeepSeek-V3 in decoding; the same stacks batched take the tallest tile."""
    assert tile_of(128, 64, 1536, 2048, masked=True) == 16
    assert tile_of(32, 128, 4096, 7168, masked=True) == 32
    assert tile_of(32, 4096, 4096, 7168, masked=True) == 128
    assert tile_of(128, 128, 1536, 2048, masked=False) == tile_of(32, 128, 4096, 7168, masked=False) == 128


@pytest.mark.parametrize(("columns", "depth"), [(512, 1024), (256, 1024), (1536, 2048), (64, 128)])
@pytest.mark.parametrize("mode", [None, "tensor", "row", "block"])
def test_what_is_invariant_of_the_batch_does_not_depend_on_rows_groups_and_counts(mode, columns, depth):
    batches, chosen = ((1, 1), (1, 7), (3, 64), (5, 100), (64, 1024), (200, 16)), set()
    dtype, out_dtype = ("float8_e4m3fn", "float32") if mode else ("float16", "float16")
    for (groups, rows), masked in itertools.product(batches, (False, True)):
        mat_a, mat_b = stacks(groups, rows, columns, depth, layout="nt", dtype=dtype)
        out, _ = stacks(groups, rows, 1, columns, dtype=out_dtype)
        product, others = (mat_a, mat_b, out), {"batch_invariant": True}
        if masked:
            others["counts"] = counts_for(product)
        if mode:
            shapes = stack_shapes(mode, groups, rows, columns, depth)
            scales = (ExchangeArray(*shape, address=fresh_address(), dtype="float32") for shape in shapes)
            others |= dict(zip(("scale_a", "scale_b"), scales, strict=True))
        chosen.add(explain(product, H200, **others).variant)
    assert len(chosen) == 1
