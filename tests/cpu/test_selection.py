"""Which variant a list takes: always a legal one, the same in any order, and one for every list."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gg_runtime
from aot.spec.arch import ARCHS
from aot.spec.tables import read_table
from aot.spec.variants import TABLES, fits, variants
from arrays import ExchangeArray, matrix, operands
from devices import A10, A100, DEVICES, H200
from embedded import KERNELS
from gg_runtime import _C

ITEM_BYTES = 2  # of the arrays here
BUILT = sorted({kernel["sm"] for kernel in KERNELS.values()})

small = st.integers(1, 40)
multiples_of_8 = st.integers(1, 40).map(lambda n: 8 * n)
extents = small | multiples_of_8


@st.composite
def views(draw, rows: int, columns: int, *, output: bool):
    """A view of [rows, columns]: either order, padded, offset, and with neither dimension contiguous."""
    kind = draw(st.sampled_from(["n", "n", "t", "t", "both"]))
    pad, offset = draw(st.sampled_from([0, 0, 8, 1])), draw(st.sampled_from([0, 0, 8, 1]))
    if kind != "both":
        return matrix(rows, columns, order=kind, pad=pad, offset=offset)
    array = matrix(rows, columns, offset=offset)
    array.strides = (2 * columns + pad, 2)
    if not output and draw(st.booleans()):
        array.strides = draw(st.sampled_from([(0, 1), (1, 0), (-columns - pad, 1), (-8 * columns, 1), (0, 0)]))
    return array


@st.composite
def groups(draw):
    m, n, k = draw(extents), draw(extents), draw(extents | st.just(0))
    return draw(views(m, k, output=False)), draw(views(k, n, output=False)), draw(views(m, n, output=True))


lists = st.lists(groups(), min_size=1, max_size=4)
devices = st.sampled_from(sorted(DEVICES))


def explain(triples, device):
    A, B, out = (list(side) for side in zip(*triples))
    return gg_runtime.explain(A, B, out=out, device=device)


@given(lists, devices)
def test_every_legal_list_has_a_variant_that_the_device_can_launch(triples, name):
    device = DEVICES[name]
    chosen = explain(triples, device)
    assert chosen.variant in _C.eligible(device["sm"], device["shared_bytes_per_block"])
    assert KERNELS[chosen.variant]["shared_bytes"] <= device["shared_bytes_per_block"]
    assert chosen.from_ptx == (device["sm"] >= 90 and device["sm"] not in BUILT)
    assert chosen.predicted_us > 0


@given(lists, devices, st.randoms())
def test_the_order_of_the_groups_does_not_change_the_choice(triples, name, random):
    shuffled = random.sample(triples, len(triples))
    first, second = explain(triples, DEVICES[name]), explain(shuffled, DEVICES[name])
    for seen in (first, second):  # whichever group they name
        for candidate in seen.candidates:
            candidate["ruled_out"] = candidate["ruled_out"] is not None
    assert first == second


@given(lists)
def test_the_same_question_has_the_same_answer(triples):
    assert explain(triples, H200) == explain(triples, H200)


@given(lists, devices)
def test_the_choice_is_the_cheapest_candidate_or_a_measured_row(triples, name):
    chosen = explain(triples, DEVICES[name])
    usable = [candidate for candidate in chosen.candidates if candidate["ruled_out"] is None]
    assert len(chosen.parts) in (1, 2)
    if len(chosen.parts) == 2:
        assert chosen.predicted_us < min(candidate["predicted_us"] for candidate in usable) - 3.5
        return
    assert chosen.variant in [candidate["variant"] for candidate in usable]
    if chosen.reason.startswith("cost model"):
        assert chosen.predicted_us == min(candidate["predicted_us"] for candidate in usable)
        assert chosen.upload_us == 0, "short lists are not uploaded"


@given(st.integers(9, 150), st.sampled_from([16, 64, 256]), st.sampled_from([64, 256, 1024]), st.randoms())
def test_a_call_is_charged_for_the_uploads_of_a_long_list(count, m, k, random):
    sizes = [(m, 64 * random.choice([1, 1, 2, 5]), k) for _ in range(count)]
    triples = list(zip(*operands(sizes)))
    chosen = explain(triples, H200)
    usable = [candidate for candidate in chosen.candidates if candidate["ruled_out"] is None]
    assert {chosen.variant} <= {candidate["variant"] for candidate in usable}
    if chosen.reason.startswith("cost model"):
        costs = [candidate["predicted_us"] + candidate["upload_us"] for candidate in usable]
        assert chosen.predicted_us + chosen.upload_us == min(costs) and costs == sorted(costs)
    for candidate in usable:
        parameters = 8 if KERNELS[candidate["variant"]]["kernel"] == "hopper" else 32
        assert (candidate["upload_us"] > 0) == (count > parameters) and candidate["upload_us"] % 3.5 == 0
    shuffled = explain(random.sample(triples, count), H200)
    assert (shuffled.variant, shuffled.upload_us) == (chosen.variant, chosen.upload_us)


def measured_rows() -> list[dict]:
    return read_table(TABLES / "H200/shapes.json")["shapes"]


def test_a_measured_list_takes_the_variant_that_won_in_any_order_of_its_groups():
    assert measured_rows()
    for row in measured_rows():
        sizes = [(m, n, k) for m, n, k, count in row["groups"] for _ in range(count)]
        dtype = {"fp16": "float16", "bf16": "bfloat16"}[row["dtype"]]
        for order in (sizes, sizes[::-1]):
            A, B, out = operands(order, layout=row["layout"], dtype=dtype)
            seen = gg_runtime.explain(A, B, out=out, device=H200)
            won = f"{row['kernel']}_sm90_{row['dtype']}_{row['layout']}_a16_{row['config']}"
            assert (seen.variant, seen.reason.partition(":")[0]) == (won, "measured on NVIDIA H200"), row


def turned_to_row_major(a, b, c):
    """The group as kernels see it: C with unit column stride, by C^T = B^T A^T where C is column-major."""

    def transposed(x):
        return ExchangeArray(*x.shape[::-1], strides=x.strides[::-1], address=x.address)

    row_major = c.strides[1] == 1 or c.shape[1] == 1
    column_major = c.strides[0] == 1 or c.shape[0] == 1
    return (transposed(b), transposed(a), transposed(c)) if column_major and not row_major else (a, b, c)


def breaks(guarantees: dict, operand: str, array) -> str | None:
    """The guarantee of a variant about operand "A", "B" or "C" that the array does not keep."""
    contiguous = guarantees["unit_stride"][operand]
    inner, outer = (0, 1) if contiguous == "first" else (1, 0)
    if array.address % guarantees["pointer_bytes"]:
        return "pointer"
    if array.shape[inner] > 1 and array.strides[inner] != 1:
        return "unit stride"
    if array.shape[outer] > 1 and ITEM_BYTES * array.strides[outer] % guarantees.get("leading_stride_bytes", 1):
        return "leading stride"
    if ITEM_BYTES * array.shape[inner] % guarantees.get("contiguous_extent_bytes", {}).get(operand, 1):
        return "extent"
    return None


def keeps(guarantees: dict, triples) -> bool:
    if "unit_stride" not in guarantees:
        return True
    if any(a.shape[1] < guarantees.get("minimum_K", 0) for a, _, _ in triples):
        return False
    largest = max(size for triple in triples for array in triple for size in array.shape)
    if largest > guarantees.get("maximum_size", 2**31):
        return False
    return not any(
        breaks(guarantees, name, array)
        for triple in triples
        for name, array in zip("ABC", turned_to_row_major(*triple))
    )


@given(lists, st.sampled_from(["A100", "H200"]))
def test_a_variant_is_usable_exactly_if_its_guarantees_in_the_manifest_hold(triples, name):
    manifest = gg_runtime.manifest()["artifacts"]
    reversed_or_repeated = any(stride <= 0 for triple in triples for array in triple for stride in array.strides)
    for candidate in explain(triples, DEVICES[name]).candidates:
        entry = manifest[candidate["variant"]]
        usable = candidate["ruled_out"] is None
        if usable:
            assert keeps(entry["guarantees"], triples), candidate
            continue
        if "shared memory" in candidate["ruled_out"]:
            continue
        assert re.match(r"(A|B|out)\[[0-3]\] (has|is) ", candidate["ruled_out"]), candidate
        if not reversed_or_repeated:
            assert not keeps(entry["guarantees"], triples), candidate


@pytest.mark.parametrize("direction", [-1, 0])
@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_no_descriptor_is_made_of_a_reversed_or_repeated_matrix(layout, which, direction):
    """TMA takes strides as unsigned numbers, so it would read far outside of a reversed matrix."""
    (triple,) = zip(*operands([(64, 64, 64)], layout=layout))
    assert {"tma", "hopper"} & kernels_for(triple, H200)
    array = triple[which]
    array.strides = tuple(direction * stride if stride > 1 else 1 for stride in array.strides)
    assert kernels_for(triple, H200) == {"basic"}


def kernels_for(triple, device) -> set[str]:
    """Kernels of which some variant takes the group."""
    candidates = explain([triple], device).candidates
    return {KERNELS[candidate["variant"]]["kernel"] for candidate in candidates if not candidate["ruled_out"]}


@pytest.mark.parametrize("change", ["pointer", "leading stride", "extent"])
@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_one_broken_guarantee_of_one_group_leaves_no_aligned_basic_variant(change, which, layout):
    triples = [list(triple) for triple in zip(*operands([(64, 64, 64), (128, 64, 64)], layout=layout))]
    assert KERNELS[explain(triples, A100).variant]["alignment"] == 16
    array = triples[1][which]
    if change == "pointer":
        array.address += 2
    elif change == "leading stride":
        array.strides = tuple(stride + 1 if stride > 1 else 1 for stride in array.strides)
    else:
        size = {"m": 128, "n": 64, "k": 64}
        size[({"n": "k", "t": "m"}[layout[0]], {"n": "n", "t": "k"}[layout[1]], "n")[which]] -= 1
        triples[1] = [
            ExchangeArray(size[rows], size[columns], strides=old.strides, address=old.address)
            for (rows, columns), old in zip(("mk", "kn", "mn"), triples[1])
        ]
    chosen = KERNELS[explain(triples, A100).variant]
    assert (chosen["alignment"], chosen["layout"]) == (2, layout)


ODD_GROUPS = {
    "B[17] has rows of 14 bytes": (17, (64, 7, 64), {}),
    "A[5] has K = 0": (5, (64, 64, 0), {}),
    "A[2] is at an address that is no multiple of 16 bytes": (2, (64, 64, 64), {"A": {"address": 2}}),
    "A[9] has rows 130 bytes apart": (9, (64, 64, 64), {"A": {"strides": (65, 1)}}),
    "B[0] has the stride -64": (0, (64, 64, 64), {"B": {"strides": (-64, 1)}}),
    "A[1] is not contiguous along K": (1, (64, 64, 64), {"A": {"strides": (1, 64)}}),
    "out[3] has rows of 14 bytes": (3, (64, 7, 64), {"B": {"strides": (8, 1)}, "out": {"strides": (8, 1)}}),
    "B[31] has columns of 10 bytes": (31, (5, 64, 5), {"B": {"strides": (1, 5)}, "turned": True}),
}


@pytest.mark.parametrize("told", ODD_GROUPS)
def test_a_candidate_that_is_ruled_out_names_the_group_and_what_is_odd_about_it(told):
    index, odd, changes = ODD_GROUPS[told]
    sizes = [(64, 64, 64)] * 32
    sizes[index] = odd
    A, B, out = operands(sizes)
    if changes.pop("turned", False):  # every product as its transpose, which takes A for B
        for side in (A, B, out):
            for array in side:
                array.strides = array.strides[::-1] if array.shape[0] == array.shape[1] else (1, array.shape[0])
    for array in (A[index], B[index], out[index]):
        for name, value in changes.get("A" if array is A[index] else "B" if array is B[index] else "out", {}).items():
            setattr(array, name, value if name == "strides" else array.address + value)
    seen = gg_runtime.explain(A, B, out=out, device=H200)
    why = [c["ruled_out"] for c in seen.candidates if KERNELS[c["variant"]]["kernel"] == "hopper"]
    assert any(text.startswith((f"{told}; TMA needs", f"{told}; the unit strides")) for text in why), why


def test_tma_takes_odd_m_and_k_if_pointers_strides_and_n_are_aligned():
    A, B, out = operands([(63, 56, 59)])
    for array in A + B + out:
        array.strides = (64, 1)
    seen = gg_runtime.explain(A, B, out=out, device=H200)
    usable = [KERNELS[candidate["variant"]] for candidate in seen.candidates if not candidate["ruled_out"]]
    assert {kernel["alignment"] for kernel in usable if kernel["kernel"] == "basic"} == {2}
    assert {kernel["kernel"] for kernel in usable} == {"basic", "tma", "hopper"}


@pytest.mark.parametrize("sizes", [(1, 8, 2**31 - 8), (1, 2**31 - 8, 8), (2**31 - 8, 8, 8)])
def test_sizes_that_do_not_round_up_to_tiles_in_32_bits_never_take_tma(sizes):
    def taken(*sizes) -> set[str]:
        triple = [x for (x,) in operands([sizes], layout="nt")]
        for place, array in enumerate(triple):
            array.address = 1 << 50 + place  # far apart
        return kernels_for(triple, H200)

    assert taken(*sizes) == {"basic"}
    assert "hopper" in taken(*(min(size, 2**31 - 256) for size in sizes))


def test_groups_without_depth_never_take_tma():
    A, B, out = operands([(64, 64, 64), (64, 64, 0)])
    assert KERNELS[gg_runtime.explain(A, B, out=out, device=H200).variant]["kernel"] == "basic"


def test_groups_without_outputs_do_not_count():
    plain = operands([(64, 64, 64)])
    odd = operands([(64, 64, 64), (0, 7, 5), (3, 0, 0)])
    chosen = [gg_runtime.explain(A, B, out=out, device=H200).variant for A, B, out in (plain, odd)]
    assert chosen[0] == chosen[1]


def test_a_list_without_outputs_takes_nothing():
    seen = gg_runtime.explain(*operands([(0, 8, 8)])[:2], device=H200)
    assert (seen.variant, seen.launches, seen.candidates) == (None, 0, [])


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_list_takes_a_variant_of_its_own_layout_and_dtype(layout, dtype):
    A, B, out = operands([(256, 128, 64), (64, 64, 64)], layout=layout, dtype=dtype)
    for device in DEVICES.values():
        chosen = KERNELS[gg_runtime.explain(A, B, out=out, device=device).variant]
        assert (chosen["layout"], "bf16" if dtype == "bfloat16" else "fp16") == (layout, chosen["dtype"])


def test_a_mix_of_layouts_still_takes_one_launch():
    triples = [*zip(*operands([(64, 64, 64)], layout="nn")), *zip(*operands([(64, 64, 64)], layout="tt"))]
    seen = explain(triples, H200)
    assert (KERNELS[seen.variant]["layout"], seen.launches) == ("strided", 1)


@pytest.mark.parametrize("sm", sorted(ARCHS))
def test_run_time_launches_what_the_builder_allows(sm):
    """`fits` and `_C.eligible` agree, on architectures that the wheel was built for and on those that it runs on."""
    arch = ARCHS[sm]
    eligible = set(_C.eligible(sm, arch.shared_bytes))
    if sm in BUILT:
        assert {name for name in eligible if KERNELS[name]["sm"] == sm} == {variant.name for variant in variants([sm])}
    for variant in variants(BUILT):
        kernel = KERNELS[variant.name]
        if fits(variant, arch) is None:
            assert kernel["shared_bytes"] <= arch.shared_bytes, variant.name
        has_image = kernel["sm"] == sm or 80 <= kernel["sm"] <= sm < 90 or kernel["ptx_bytes"] > 0
        assert (variant.name in eligible) == (has_image and kernel["shared_bytes"] <= arch.shared_bytes), variant.name


@pytest.mark.parametrize("kib", [99, 40, 20])
def test_a_gpu_never_gets_more_shared_memory_than_it_has(kib):
    limit = kib * 1024
    A, B, out = operands([(4096, 4096, 4096)])
    seen = gg_runtime.explain(A, B, out=out, device=A10 | {"shared_bytes_per_block": limit})
    assert KERNELS[seen.variant]["shared_bytes"] <= limit
    for candidate in seen.candidates:
        needed = KERNELS[candidate["variant"]]["shared_bytes"]
        refused = f"needs {needed} bytes of shared memory and a block may have {limit}" in (
            candidate["ruled_out"] or ""
        )
        assert refused == (needed > limit), candidate
    assert max(KERNELS[name]["shared_bytes"] for name in _C.eligible(86, limit)) <= limit


def test_the_largest_tiles_need_more_than_the_smallest_gpu_has():
    """Or else the test above would refuse nothing."""
    needs = [kernel["shared_bytes"] for kernel in KERNELS.values() if (kernel["sm"], kernel["kernel"]) == (80, "basic")]
    assert min(needs) <= 20 * 1024 < 40 * 1024 < max(needs)


def test_an_explanation_reads_as_text():
    A, B, out = operands([(64, 64, 64)])
    seen = gg_runtime.explain(A, B, out=out, device=H200)
    lines = str(seen).splitlines()
    assert seen.variant in lines[0] and seen.reason in lines[1]
    assert len(lines) == 2 + len(seen.candidates) - 1
