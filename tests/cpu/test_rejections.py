"""Wrong arguments: each is refused with its own message, before any driver is asked."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import assert_says

import gg_runtime
from arrays import CPU, TYPES, Array, CapsuleArray, ExchangeArray, InterfaceArray, fresh_address, matrix, operands
from devices import H200


def check(A, B, out=None):
    """All checks of group_gemm, for arrays that say they are on a GPU."""
    return gg_runtime.explain(A, B, out=out, device=H200)


def refused(kind, A, B, out=None) -> str:
    with pytest.raises(kind) as caught:
        check(A, B, out)
    assert type(caught.value) is kind
    return str(caught.value)


SIZES = [(16, 24, 32), (40, 48, 64)]


def test_lists_of_unequal_length():
    A, B, _ = operands(SIZES)
    assert_says(refused(ValueError, A, B[:1]), "group_A has 2", "group_B has 1", "needs A[i] and B[i]")


@pytest.mark.parametrize("group", [None, 7, "text", (x for x in ()), {}], ids=lambda group: type(group).__name__)
def test_groups_that_are_no_lists(group):
    A, B, _out = operands(SIZES)
    kind = "None" if group is None else type(group).__name__
    assert_says(refused(TypeError, group, B), "group_A", kind, "list or tuple")
    assert_says(refused(TypeError, A, group), "group_B", kind)
    if group is not None:
        assert_says(refused(TypeError, A, B, group), "out", kind)


@pytest.mark.parametrize("shape", [(), (8,), (2, 8, 8)], ids=len)
def test_arrays_that_are_no_matrices(shape):
    A, B, _ = operands(SIZES)
    array = ExchangeArray(*shape, address=fresh_address())
    assert_says(refused(ValueError, [A[0], array], B), "A[1]", f"{len(shape)} dimension", "reshape")
    assert_says(refused(ValueError, A, [B[0], array]), "B[1]", f"{len(shape)} dimension", "reshape")


def test_inner_sizes_that_differ():
    A, B = [matrix(8, 8), matrix(64, 64)], [matrix(8, 8), matrix(96, 64)]
    assert_says(refused(ValueError, A, B), "B[1] has K=96 rows", "A[1] has K=64 columns", "equal")


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8"])
def test_dtypes_without_kernels(dtype):
    A, B, _ = operands(SIZES, dtype=dtype)
    assert_says(refused(TypeError, A, B), "A[0]", dtype, "float16, bfloat16 or float8_e4m3fn is needed", "convert")


@pytest.mark.parametrize("which", ["A", "B", "out"])
def test_mixed_dtypes(which):
    lists = dict(zip(("A", "B", "out"), operands(SIZES)))
    old = lists[which][1]
    lists[which][1] = matrix(*old.shape, dtype="bfloat16")
    other = "A[i] @ B[i] has float16" if which == "out" else "A[0] has float16"
    assert_says(refused(TypeError, **lists), f"{which}[1] has dtype bfloat16", other, "convert")


@pytest.mark.parametrize("which", ["A", "B", "out"])
@pytest.mark.parametrize(("place", "name"), [({"device": 1}, "cuda:1"), ({"device_type": CPU}, "the CPU")])
def test_mixed_devices(which, place, name):
    lists = dict(zip(("A", "B", "out"), operands(SIZES)))
    lists[which][1] = matrix(*lists[which][1].shape, **place)
    assert_says(refused(ValueError, **lists), f"{which}[1] is on {name}", "A[0] is on cuda:0", "move")


def test_dimensions_beyond_32_bits():
    A, B = [matrix(2**31, 8)], [matrix(8, 8)]
    assert_says(refused(ValueError, A, B), "A[0]", "[2147483648, 8]", "2147483647", "split")


def test_addresses_between_elements():
    A, B, _ = operands(SIZES)
    A[1].address += 1
    assert_says(refused(ValueError, A, B), "A[1]", "no multiple of 2 bytes", "copy")


def test_outputs_of_the_wrong_number():
    A, B, out = operands(SIZES)
    assert_says(refused(ValueError, A, B, out[:1]), "out has 1", "2 products")


def test_outputs_for_an_empty_list():
    assert_says(refused(ValueError, [], [], [matrix(8, 8)]), "out has 1", "0 products")


def test_outputs_of_the_wrong_shape():
    A, B, out = operands(SIZES)
    out[1] = matrix(48, 40)
    assert_says(refused(ValueError, A, B, out), "out[1] has shape [48, 40]", "[40, 48]")


def test_outputs_that_are_no_matrices():
    A, B, out = operands(SIZES)
    out[0] = ExchangeArray(16 * 24, address=fresh_address())
    assert_says(refused(ValueError, A, B, out), "out[0]", "1 dimension;")


def test_an_output_that_is_an_input():
    A, B, _ = operands([(32, 32, 32)])
    assert_says(refused(ValueError, A, B, A), "out[0] shares memory with A[0]", "separate")
    assert_says(refused(ValueError, A, B, B), "out[0] shares memory with B[0]", "separate")


def test_an_output_that_overlaps_an_input_of_another_group_by_its_last_element():
    A, B, out = operands(SIZES)
    out[1].address = A[0].address + 2 * (16 * 32 - 1)
    assert_says(refused(ValueError, A, B, out), "out[1] shares memory with A[0]")
    out[1].address += 2
    check(A, B, out)


def test_two_outputs_in_one_place():
    A, B, out = operands([(16, 16, 16)] * 2)
    assert_says(refused(ValueError, A, B, [out[0], out[0]]), "shares memory with out[")


@pytest.mark.parametrize("strides", [(0, 1), (1, 0), (23, 1), (1, 15), (1, 1)])
def test_an_output_whose_elements_share_memory(strides):
    A, B, _ = operands([(16, 24, 32)])
    out = [ExchangeArray(16, 24, strides=strides, address=fresh_address())]
    assert_says(refused(ValueError, A, B, out), "out[0]", "share memory", "distinct")


def test_outputs_side_by_side_in_one_buffer_are_taken():
    A, B, _ = operands([(16, 24, 32), (16, 40, 32)])
    start = fresh_address()
    out = [
        ExchangeArray(16, 24, strides=(64, 1), address=start),
        ExchangeArray(16, 40, strides=(64, 1), address=start + 2 * 24),
    ]
    check(A, B, out)
    for step in (-2, 4):  # into the other's last column, and past the row's end into the other's next row
        out[1].address += step
        assert_says(refused(ValueError, A, B, out), "shares memory")


def elements(array: Array) -> set[int]:
    rows, columns = (range(size) for size in array.shape)
    return {array.address + 2 * (i * array.strides[0] + j * array.strides[1]) for i in rows for j in columns}


@st.composite
def views_of_one_buffer(draw, start=1 << 30):
    strides = draw(st.sampled_from([(1, 5), (5, 1), (10, 1), (1, 10), (10, 2), (-10, 1), (3, 2), (0, 1), (10, 5)]))
    shape = draw(st.tuples(st.integers(0, 4), st.integers(0, 4)))
    return ExchangeArray(*shape, strides=strides, address=start + 2 * draw(st.integers(-20, 20)))


@settings(max_examples=2000)
@given(views_of_one_buffer(), views_of_one_buffer())
def test_outputs_that_are_taken_never_share_an_element(first, second):
    out = [first, second]
    A, B = ([matrix(c.shape[0], 8) for c in out], [matrix(8, c.shape[1]) for c in out])
    try:
        check(A, B, out)
    except ValueError as error:
        assert "share" in str(error)
    else:
        distinct = elements(first) | elements(second)
        assert len(distinct) == sum(c.shape[0] * c.shape[1] for c in out)


def test_the_first_wrong_thing_is_told_in_the_order_of_the_checks():
    A, B = [matrix(8, 8), matrix(8, 16, dtype="float32")], [matrix(8, 8), matrix(8, 8)]
    assert_says(refused(TypeError, A, B), "A[1]", "float32")
    assert_says(refused(ValueError, A, B[:1]), "group_A has 2")


def test_a_capsule_array_is_released_when_the_call_is_refused():
    A, B, _ = operands([(8, 8, 8)], kind=CapsuleArray, dtype="float32")
    refused(TypeError, A, B)
    assert A[0].released == len(A[0].exported)


def test_a_described_device_that_lacks_a_fact_is_told_which():
    A, B, _ = operands([(8, 8, 8)])
    with pytest.raises(ValueError, match="multiprocessors"):
        gg_runtime.explain(A, B, device={"sm": 90})


@pytest.mark.parametrize("fact", ["sm", "multiprocessors", "shared_bytes_per_block"])
def test_a_described_device_with_nothing_of_something_is_told_what(fact):
    A, B, _ = operands([(8, 8, 8)])
    device = {"sm": 90, "multiprocessors": 132, "shared_bytes_per_block": 232448, fact: 0}
    with pytest.raises(ValueError, match=f"{fact} = 0"):
        gg_runtime.explain(A, B, device=device)


def test_cpu_matrices_cannot_be_explained_without_a_device():
    A, B, _ = operands([(8, 8, 8)], device_type=CPU)
    with pytest.raises(ValueError, match="device="):
        gg_runtime.explain(A, B)


def test_a_variant_cannot_be_forced_on_the_cpu():
    A, B, _ = operands([(8, 8, 8)], device_type=CPU)
    with pytest.raises(ValueError, match="CUDA device"):
        gg_runtime.Plan(A, B, variant=gg_runtime.kernels()[0]["name"])


@pytest.mark.parametrize("kind", [CapsuleArray, InterfaceArray])
def test_an_output_that_is_read_only(kind):
    A, B, out = operands(SIZES, kind=kind)
    out[1].read_only = True
    assert_says(refused(ValueError, A, B, out), "out[1] is read-only")
    A[0].read_only, out[1].read_only = True, False
    check(A, B, out)


@pytest.mark.parametrize("others", [{"strides": (64,)}, {"shape": (-16, 32)}, {"mask": 1}, {"strides": (63, 2)}])
def test_interfaces_that_make_no_sense(others):
    A, B, _ = operands(SIZES, kind=InterfaceArray)
    A[0].others = others
    assert_says(refused(TypeError, A, B), "group_gemm: A[0], of type InterfaceArray, cannot be read")


def test_a_capsule_of_a_version_that_nobody_knows_yet():
    A, B, _ = operands(SIZES, kind=CapsuleArray)
    B[1].major = 2
    assert_says(refused(TypeError, A, B), "B[1]", "major version")
    assert B[1].released == len(B[1].exported) == 1


def test_an_array_whose_dlpack_has_no_versions():
    class Early(CapsuleArray):
        def __dlpack__(self, stream=None):
            return super().__dlpack__(stream=stream)

    A, B, out = operands(SIZES, kind=Early)
    check(A, B, out)


@pytest.mark.parametrize(("code", "name"), [(7, "float8_e3m4"), (13, "float8_e5m2fnuz"), (11, "float8_e4m3fnuz")])
def test_other_kinds_of_float8_are_told_by_their_names(monkeypatch, code, name):
    monkeypatch.setitem(TYPES, name, (code, 8, None))
    A, B, _ = operands(SIZES, dtype=name)
    assert_says(refused(TypeError, A, B), f"has dtype {name}; float16, bfloat16 or float8_e4m3fn is needed")


def test_e5m2_goes_to_grouped_mm():
    A, B, _ = operands(SIZES, dtype="float8_e5m2")
    words = "A[0] has dtype float8_e5m2, which lists do not take", "grouped_mm", "bfloat16"
    assert_says(refused(TypeError, A, B), *words)
    narrow, others, _ = operands(SIZES, dtype="float8_e4m3fn")
    assert_says(refused(TypeError, narrow, B), "B[0] has dtype float8_e5m2, which lists do not take")
    with pytest.raises(ValueError, match="out_dtype is float8_e5m2; float16, bfloat16, float32 or float8_e4m3fn"):
        gg_runtime.explain(narrow, others, out_dtype="float8_e5m2", device=H200)


@pytest.mark.parametrize("value", ["90", 9.0, None, (9, 0), 10**12, -1, True])
def test_a_described_device_with_facts_that_are_no_numbers(value):
    A, B, _ = operands(SIZES)
    with pytest.raises(ValueError, match="device has sm = .*, a positive int is needed"):
        gg_runtime.explain(A, B, device=H200 | {"sm": value})


@pytest.mark.parametrize("fact", ["clock_mhz", "memory_gb_s"])
@pytest.mark.parametrize("value", ["1980", None, 0, -1, 10**400, 1e7, float("nan"), float("inf"), True, [1]])
def test_a_described_device_with_rates_that_no_gpu_has(fact, value):
    A, B, _ = operands(SIZES)
    with pytest.raises(ValueError, match=f"device has {fact} = .*, a number from 1 to 1000000 is needed"):
        gg_runtime.explain(A, B, device=H200 | {fact: value})


@pytest.mark.parametrize("value", [b"NVIDIA H200", 200, None, "", "NVIDIA\0H200", "\udc80"])
def test_a_described_device_whose_name_is_no_text(value):
    A, B, _ = operands(SIZES)
    with pytest.raises(ValueError, match="device has name = .*, a str is needed"):
        gg_runtime.explain(A, B, device=H200 | {"name": value})


@pytest.mark.parametrize("key", ["clock", "Name", 90, None, "\udc80"])
def test_a_described_device_with_a_fact_that_is_not_known(key):
    A, B, _ = operands(SIZES)
    with pytest.raises(ValueError, match="which is no fact that is known; it needs sm, ") as refusal:
        gg_runtime.explain(A, B, device=H200 | {key: 1})
    assert all(fact in str(refusal.value) for fact in H200)


@pytest.mark.parametrize("device", ["cuda:0", 0, (9, 0)])
def test_a_device_that_is_no_description(device):
    A, B, _ = operands(SIZES)
    with pytest.raises(TypeError, match="explain: device is a .*, a dict of sm, multiprocessors"):
        gg_runtime.explain(A, B, device=device)


def test_facts_may_be_of_any_integer_type():
    np = pytest.importorskip("numpy")
    A, B, _ = operands(SIZES)
    numbers = {fact: np.int64(value) for fact, value in H200.items() if fact != "name"}
    assert gg_runtime.explain(A, B, device=H200 | numbers) == check(A, B)
    assert gg_runtime.explain(A, B, device=H200 | {"clock_mhz": np.float32(1980)}) == check(A, B)


def test_an_explanation_of_nothing_needs_no_device():
    assert gg_runtime.explain([], []).variant is None


def test_matrices_without_offs_are_asked_what_they_are():
    A, B, _ = operands(SIZES)
    with pytest.raises(ValueError, match="offs is missing; pass int32 .*group_gemm, as lists"):
        gg_runtime.explain(A[0], B[0], device=H200)


def test_a_forced_variant_that_is_no_name():
    with pytest.raises(TypeError, match="Plan: variant is 5; the name"):
        gg_runtime.Plan([], [], variant=5)


def test_a_forced_variant_of_nothing():
    with pytest.raises(ValueError, match="Plan: variant basic needs matrices on a CUDA device, and the list is empty"):
        gg_runtime.Plan([], [], variant="basic")


@pytest.mark.parametrize("device", ["cuda:0", 0.0])
def test_a_preloaded_device_that_is_no_number(device):
    with pytest.raises(TypeError, match="preload: device is .*number of a GPU"):
        gg_runtime.preload(device)


NO_NUMBERS = {
    "an integer as text": (
        lambda: gg_runtime.route(matrix(2, 2, dtype="int32"), "3"),
        "route: experts is a str; an integer",
    ),
    "a size that is no integer": (
        lambda: gg_runtime.fused_experts_workspace(1.5, 2, 4, 64, 64),
        "fused_experts_workspace: tokens is a float",
    ),
    "a factor that is missing": (
        lambda: gg_runtime.combine(matrix(4, 8), matrix(2, 2, dtype="int32"), scale=None),
        "combine: scale is None; a number is needed",
    ),
    "several factors": (
        lambda: gg_runtime.combine(matrix(4, 8), matrix(2, 2, dtype="int32"), scale=[1.0, 2.0]),
        "combine: scale is a list; a number is needed",
    ),
}


@pytest.mark.parametrize("call, told", NO_NUMBERS.values(), ids=NO_NUMBERS)
def test_what_is_no_number_is_told_by_its_type_and_not_printed(call, told):
    with pytest.raises(TypeError, match=told) as caught:
        call()
    assert len(str(caught.value)) < 100


@pytest.mark.parametrize(
    "stray", [{"alpha": 2.0}, {"gate_up": "up_first"}, {"k_alignment": 128}, {"counts": [1]}], ids=list
)
def test_lists_refuse_what_goes_with_arrays(stray):
    lists = [matrix(4, 8)], [matrix(8, 4)]
    for call in (lambda: gg_runtime.explain(*lists, device=H200, **stray), lambda: gg_runtime.Plan(*lists, **stray)):
        with pytest.raises(ValueError, match=f"{next(iter(stray))} goes with arrays, as grouped_mm takes them"):
            call()
