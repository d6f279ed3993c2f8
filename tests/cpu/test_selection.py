"""Which variant a list takes: always a legal one, the same in any order, and one for every list."""

import gg_runtime
import pytest
from arrays import ExchangeArray, matrix, operands
from devices import A10, A100, DEVICES, H200
from embedded import KERNELS
from gg_runtime import _C
from hypothesis import given
from hypothesis import strategies as st

from aot.arch import ARCHS
from aot.variants import config_of, fits, table_rows, variants

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
    m, n, k = (draw(extents) for _ in range(3))
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
    assert first == second


@given(lists)
def test_the_same_question_has_the_same_answer(triples):
    assert explain(triples, H200) == explain(triples, H200)


@given(lists, devices)
def test_the_choice_is_the_cheapest_candidate_or_a_measured_row(triples, name):
    chosen = explain(triples, DEVICES[name])
    usable = [candidate for candidate in chosen.candidates if candidate["ruled_out"] is None]
    assert chosen.variant in [candidate["variant"] for candidate in usable]
    if chosen.reason.startswith("cost model"):
        assert chosen.predicted_us == min(candidate["predicted_us"] for candidate in usable)


def turned_to_row_major(a, b, c):
    """The group as kernels see it: C with unit column stride, by C^T = B^T A^T where C is column-major."""

    def transposed(x):
        return ExchangeArray(*x.shape[::-1], strides=x.strides[::-1], address=x.address)

    row_major = c.strides[1] == 1 or c.shape[1] == 1
    column_major = c.strides[0] == 1 or c.shape[0] == 1
    return (transposed(b), transposed(a), transposed(c)) if column_major and not row_major else (a, b, c)


def breaks(promises: dict, operand: str, array) -> str | None:
    """The promise of a variant about operand "A", "B" or "C" that the array does not keep."""
    contiguous = promises["unit_stride"][operand]
    inner, outer = (0, 1) if contiguous == "first" else (1, 0)
    if array.address % promises["pointer_bytes"]:
        return "pointer"
    if array.shape[inner] > 1 and array.strides[inner] != 1:
        return "unit stride"
    if array.shape[outer] > 1 and array.strides[outer] % promises.get("leading_strides_divisible_by", 1):
        return "leading stride"
    if array.shape[inner] % promises.get("contiguous_extents_divisible_by", {}).get(operand, 1):
        return "extent"
    return None


def keeps(promises: dict, triples) -> bool:
    if "unit_stride" not in promises:
        return True
    return not any(
        breaks(promises, name, array)
        for triple in triples
        for name, array in zip("ABC", turned_to_row_major(*triple))
    )


@given(lists, st.sampled_from(["A100", "H200"]))
def test_a_variant_is_usable_exactly_if_its_promises_in_the_manifest_hold(triples, name):
    manifest = gg_runtime.manifest()["artifacts"]
    reversed_or_repeated = any(stride <= 0 for triple in triples for array in triple for stride in array.strides)
    for candidate in explain(triples, DEVICES[name]).candidates:
        entry = manifest[candidate["variant"]]
        usable = candidate["ruled_out"] is None
        if usable:
            assert keeps(entry["promises"], triples), candidate
        elif not reversed_or_repeated and "shared memory" not in candidate["ruled_out"]:
            assert not keeps(entry["promises"], triples), candidate


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
def test_one_broken_promise_of_one_group_leaves_no_aligned_basic_variant(change, which, layout):
    triples = [list(triple) for triple in zip(*operands([(64, 64, 64), (128, 64, 64)], layout=layout))]
    assert KERNELS[explain(triples, A100).variant]["alignment"] == 16
    array = triples[1][which]
    if change == "pointer":
        array.address += 2
    elif change == "leading stride":
        array.strides = tuple(stride + 1 if stride > 1 else 1 for stride in array.strides)
    else:
        m, n, k = {("n", 0): (128, 64, 63), ("t", 0): (127, 64, 64), ("n", 1): (128, 63, 64), ("t", 1): (128, 64, 63)}.get(
            (layout[which : which + 1], which), (128, 63, 64)
        )
        triples[1] = [
            ExchangeArray(*shape, strides=old.strides, address=old.address)
            for shape, old in zip([(m, k), (k, n), (m, n)], triples[1])
        ]
    chosen = KERNELS[explain(triples, A100).variant]
    assert (chosen["alignment"], chosen["layout"]) == (2, layout)


def test_tma_takes_odd_m_and_k_if_pointers_strides_and_n_are_aligned():
    A, B, out = operands([(63, 56, 59)])
    for array in A + B + out:
        array.strides = (64, 1)
    seen = gg_runtime.explain(A, B, out=out, device=H200)
    usable = [KERNELS[candidate["variant"]] for candidate in seen.candidates if not candidate["ruled_out"]]
    assert {kernel["alignment"] for kernel in usable if kernel["kernel"] == "basic"} == {2}
    assert {kernel["kernel"] for kernel in usable} == {kernel["kernel"] for kernel in KERNELS.values()} - {"pack"}


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
def test_builder_and_run_time_agree_on_what_an_architecture_can_launch(sm):
    """What `fits` allows from the tables is what _C.eligible names, for an architecture that the wheel was built for."""
    arch = ARCHS[sm]
    eligible = [KERNELS[name] for name in _C.eligible(sm, arch.shared_bytes)]
    if sm in BUILT:
        own = {kernel["name"] for kernel in eligible if kernel["sm"] == sm}
        assert own == {variant.name for variant in variants([sm])}
    for kernel in eligible:
        assert kernel["shared_bytes"] <= arch.shared_bytes, kernel["name"]
        runs = kernel["sm"] == sm or (kernel["sm"] < 90 and kernel["sm"] // 10 == sm // 10 and kernel["sm"] <= sm)
        assert runs or kernel["ptx_bytes"], kernel["name"]


@pytest.mark.parametrize("sm", BUILT)
def test_every_row_of_a_table_fits_or_is_left_out_with_a_reason(sm):
    for kernel in ("basic", "tma"):
        if fits(kernel, config_of(table_rows("basic", sm)[0]), ARCHS[sm], "fp16", 16) is not None:
            continue
        for row in table_rows(kernel, sm):
            reason = fits(kernel, config_of(row), ARCHS[sm], "fp16", row["alignment"])
            built = any(f"{kernel}_sm{sm}_fp16_" in name and name.endswith(f"a{row['alignment']}_{config_of(row)}") for name in KERNELS)
            assert built == (reason is None), (row, reason)


def test_a_gpu_with_99_kib_never_gets_more():
    A, B, out = operands([(4096, 4096, 4096)])
    seen = gg_runtime.explain(A, B, out=out, device=A10)
    assert KERNELS[seen.variant]["shared_bytes"] <= 99 * 1024
    passed_over = [c for c in seen.candidates if KERNELS[c["variant"]]["shared_bytes"] > 99 * 1024]
    assert all("shared memory" in c["ruled_out"] for c in passed_over)


def test_an_explanation_reads_as_text():
    A, B, out = operands([(64, 64, 64)])
    seen = gg_runtime.explain(A, B, out=out, device=H200)
    lines = str(seen).splitlines()
    assert seen.variant in lines[0] and seen.reason in lines[1]
    assert len(lines) == 2 + len(seen.candidates) - 1
