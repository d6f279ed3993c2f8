"""Sizes up to 2**31 and strides of any 64 bits: an answer or an error that names the array, never an overflow."""

import sys
from types import ModuleType

import pytest
from hypothesis import event, given, settings

import gg_runtime
from arrays import CPU, CapsuleArray, ExchangeArray, fresh_address, matrix, operands, ragged
from devices import H200
from extremes import check_outcome, lists, raggeds


def refused(*arguments, **others) -> str:
    with pytest.raises(ValueError) as caught:
        gg_runtime.explain(*arguments, **others, device=H200)
    return str(caught.value)


@settings(max_examples=200)
@given(lists())
def test_any_list_is_explained_or_refused(given_list):
    A, B, out, _ = given_list
    event(str(check_outcome([*A, *B], lambda: gg_runtime.explain(A, B, device=H200)) is None))
    check_outcome([*A, *B, *out], lambda: gg_runtime.explain(A, B, out=out, device=H200))


@settings(max_examples=200)
@given(raggeds())
def test_any_ragged_product_is_explained_or_refused(given_product):
    mat_a, mat_b, others = given_product
    offs, out = others["offs"], others["out"]
    arrays = [mat_a, mat_b, offs]
    event(str(check_outcome(arrays, lambda: gg_runtime.explain(mat_a, mat_b, offs=offs, device=H200)) is None))
    check_outcome([*arrays, out], lambda: gg_runtime.explain(mat_a, mat_b, offs=offs, out=out, device=H200))


ABSURD = [(2**62, 1), (1, 2**62), (-(2**62), 1), (2**63 - 1, 1), (-(2**63), 1), (2**61, 2**61)]


@pytest.mark.parametrize("strides", ABSURD)
@pytest.mark.parametrize("which", ["A", "B", "out"])
def test_strides_past_the_address_space_are_told_with_the_array(which, strides):
    lists = dict(zip(("A", "B", "out"), operands([(16, 16, 16)] * 2)))
    lists[which][1].strides = strides
    text = refused(lists["A"], lists["B"], out=lists["out"])
    assert text.startswith(f"group_gemm: {which}[1] has shape [16, 16] and strides {list(strides)}")
    assert "address space" in text and "view" in text


@pytest.mark.parametrize("which", ["mat_a", "mat_b", "out", "bias", "scale_b"])
def test_so_are_those_of_every_array_of_a_ragged_product(which):
    mat_a, mat_b, offs = ragged(16, 16, 16, 3, dtype="float8_e4m3fn")
    given = {"mat_a": mat_a, "mat_b": mat_b, "offs": offs, "out": matrix(16, 16, dtype="float32")}
    given["bias"] = matrix(3, 16, dtype="float32")
    given["scale_b"] = ExchangeArray(3, address=fresh_address(), dtype="float32")
    given[which].strides = (2**62 + 4, *given[which].strides[1:])
    with pytest.raises(ValueError, match=rf"^grouped_mm: {which} has shape .* address space"):
        gg_runtime._C.grouped_mm(**given)


def test_scales_of_a_list_past_the_address_space():
    A, B, out = operands([(16, 16, 16)] * 3, dtype="float8_e4m3fn")
    scale = ExchangeArray(3, strides=(2**62,), address=fresh_address(), dtype="float32")
    with pytest.raises(ValueError, match="^group_gemm: scale_a has shape .* address space"):
        gg_runtime.group_gemm(A, B, out=out, scale_a=scale)


@pytest.mark.parametrize("stride", [2**63 - 1, -(2**63), 2**62])
def test_strides_that_are_never_walked_do_not_count(stride):
    """numpy and torch give dimensions of one element any stride."""
    A, B, out = operands([(1, 64, 64), (1, 64, 64)])
    for array in (*A, *out):
        array.strides = (stride, 1)
    gg_runtime.explain(A, B, out=out, device=H200)


def test_rows_of_one_buffer_with_a_pitch_whose_bytes_come_round_to_0():
    """4 * 2**62 bytes are 0 modulo 2**64: a remainder by that ends the process."""
    A, B, _ = operands([(1, 64, 64), (1, 64, 64)], dtype="float8_e4m3fn")
    out = [matrix(1, 64, dtype="float32"), matrix(1, 64, dtype="float32")]
    for array in out:
        array.address, array.strides = out[0].address, (2**62, 1)
    assert "shares memory with" in refused(A, B, out=out)


def test_addresses_at_the_end_of_the_address_space():
    A, B, _ = operands([(16, 16, 16)])
    for address in (2**64 - 32, 2**63 - 32):
        A[0].address = address
        assert "A[0]" in refused(A, B) and "address space" in refused(A, B)


def test_outputs_that_no_memory_holds():
    A, B, _ = operands([(2**31 - 1, 2**31 - 1, 0)])
    text = refused(A, B)
    assert text.startswith("group_gemm: the outputs have more elements than memory") and "split" in text
    tall, wide = matrix(2**30, 1), matrix(1, 2**30)
    assert gg_runtime.explain([tall], [wide], device=H200).variant
    assert "more elements" in refused([tall] * 3, [wide] * 3)


def test_products_that_64_bits_do_not_count_still_have_a_time():
    A, B, _ = operands([(2**30, 2**30, 2**30)])
    assert gg_runtime.explain(A, B, device=H200).predicted_us > 1e15
    mat_a, mat_b, offs = ragged(2**31 - 257, 2**31 - 256, 1, 1, layout="nn", dtype="bfloat16")
    both = [gg_runtime.explain(mat_a, mat_b, offs=offs, activation=word, device=H200) for word in (None, "silu")]
    assert 0 < both[0].predicted_us < both[1].predicted_us


def test_a_ragged_k_whose_tiles_64_bits_do_not_count_still_has_a_time():
    """Parts of K are for few outputs alone."""
    mat_a, mat_b, offs = ragged(16, 16, 16, 1)
    size = 2**31 - 257
    mat_a.shape, mat_a.strides = (size, 2**20), (0, 0)
    mat_b.shape, mat_b.strides = (2**20, size), (0, 0)
    offs.shape = (2**15,)
    told = gg_runtime.explain(mat_a, mat_b, offs=offs, out_dtype="float32", device=H200)
    assert told.predicted_us > 1e15 and told.launches == 1


def test_lists_of_outputs_near_the_limit_still_have_a_time():
    """Tiles of all groups are counted in 64 bits."""
    tall, wide = matrix(2**20, 1), matrix(1, 2**20)
    predicted = [gg_runtime.explain([tall] * n, [wide] * n, device=H200).predicted_us for n in (1, 1000)]
    assert 0 < 100 * predicted[0] < predicted[1]


@pytest.mark.parametrize(("groups", "taken"), [(2**30, True), (2**30 + 1, False), (2**31 - 1, False)])
def test_more_groups_than_kernels_count(groups, taken):
    mat_a, mat_b, offs = ragged(16, 16, 16, 1)
    mat_b.shape, mat_b.strides, offs.shape = (groups, 16, 16), (0, 16, 1), (groups,)
    if taken:
        assert gg_runtime.explain(mat_a, mat_b, offs=offs, device=H200).variant
    else:
        text = refused(mat_a, mat_b, offs=offs)
        assert text.startswith("grouped_mm: mat_b has E=") and str(2**30) in text and "split" in text


def test_an_array_without_strides_and_more_elements_than_64_bits_count():
    """DLPack before 1.2 may leave the strides out: row-major."""

    class Unstrided(ExchangeArray):
        def describe(self):
            tensor = super().describe()
            tensor.strides = None
            return tensor

    mat_a, mat_b, offs = ragged(16, 2**31 - 1, 2**31 - 1, 1)
    mat_b = Unstrided(2**31 - 1, 2**31 - 1, 2**31 - 1, address=fresh_address())
    mat_a.shape, offs.shape = (16, 2**31 - 1), (2**31 - 1,)
    assert "mat_b" in refused(mat_a, mat_b, offs=offs)


def test_negative_sizes_are_refused():
    A, B, _ = operands([(16, 16, 16)])
    A[0].shape = (-16, 16)
    assert refused(A, B).startswith("group_gemm: A[0] has shape [-16, 16], a dimension may have from 0 up to")


class Copying(CapsuleArray):
    """An array that can be exported only by copying it, as one on another device."""

    def __dlpack__(self, *, copy=None, **options):
        if copy is False:
            raise BufferError("the memory has to be copied")
        return super().__dlpack__(**options)


class WithoutCopy(CapsuleArray):
    """DLPack as it was before the argument `copy`."""

    def __dlpack__(self, *, stream=None, max_version=None):
        return super().__dlpack__(stream=stream, max_version=max_version)


def test_a_capsule_that_holds_a_copy_is_refused():
    """It would be gone before it is read."""
    _, B, out = operands([(16, 16, 16)], device_type=CPU)
    copied = WithoutCopy(16, 16, address=fresh_address(), device_type=CPU)
    copied.read_only = 2  # the capsule's flags: DLPACK_FLAG_BITMASK_IS_COPIED
    with pytest.raises(TypeError, match=r"A\[0\], of type WithoutCopy, cannot be read: .*its capsule holds a copy"):
        gg_runtime.explain([copied], B, out=out, device=H200)
    assert copied.released == 1


def test_arrays_that_would_be_copied_are_refused():
    A, B, out = operands([(16, 16, 16)], device_type=CPU)
    copying = Copying(16, 16, address=fresh_address(), device_type=CPU)
    for (a, b, c), name in (([copying], B, out), "A[0]"), ((A, B, [copying]), "out[0]"):
        with pytest.raises(TypeError) as caught:
            gg_runtime.explain(a, b, out=c, device=H200)
        text = str(caught.value)
        assert text.startswith(f"group_gemm: {name}, of type Copying, cannot be read: BufferError: the memory has to")
        assert "pass a copy" in text


def test_arrays_that_do_not_know_the_argument_copy_still_tell_what_is_read_only():
    A, B, out = operands([(16, 16, 16)], kind=WithoutCopy)
    gg_runtime.explain(A, B, out=out, device=H200)
    out[0].read_only = True
    assert "out[0] is read-only" in refused(A, B, out=out)
    assert all(array.released == len(array.exported) > 0 for array in (*A, *B, *out))


def test_a_capsule_is_asked_for_without_a_copy():
    asked = []

    class Asked(CapsuleArray):
        def __dlpack__(self, **options):
            asked.append(options)
            return super().__dlpack__(**options)

    A, B, _ = operands([(16, 16, 16)], kind=Asked)
    gg_runtime.explain(A, B, device=H200)
    assert len(asked) == 2, "once for each array"
    assert all(options["copy"] is False and options["max_version"] == (1, 0) for options in asked)


@pytest.mark.parametrize("torch", [None, ModuleType("torch")], ids=["blocked", "half imported"])
def test_what_stands_for_torch_in_sys_modules_need_not_be_torch(monkeypatch, torch):
    class New(ExchangeArray):  # a type is asked about once
        pass

    monkeypatch.setitem(sys.modules, "torch", torch)
    A, B, out = operands([(16, 16, 16)], kind=New)
    assert gg_runtime.explain(A, B, out=out, device=H200).variant
