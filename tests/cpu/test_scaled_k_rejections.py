"""Wrong arguments of grouped_mm with a ragged K of e4m3: each is refused with its own message."""

import pytest
from refusals import assert_refused, check

import gg_runtime
from arrays import CPU, array
from devices import A100, H200

E, M, N, K = 3, 40, 48, 300  # from 3 to 5 blocks of 128
E4M3 = "float8_e4m3fn"


def scale(*shape, dtype="float32", **facts):
    return array(*shape, dtype=dtype, **facts)


def call(dtype=E4M3, k=K, **facts) -> dict:
    """A product that is taken, without scales."""
    operands = array(M, k, dtype=dtype, **facts), array(k, N, dtype=dtype, **facts)
    return {"mat_a": operands[0], "mat_b": operands[1], "offs": array(E, dtype="int32", **facts)}


def scales(a, b, **facts) -> dict:
    return {name: scale(*shape, **facts) for name, shape in (("scale_a", a), ("scale_b", b)) if shape is not None}


@pytest.mark.parametrize("blocks", [3, 4, 5])
def test_scales_of_as_many_blocks_as_groups_may_have(blocks):
    for alignment in (1, 128):
        given = call(device_type=CPU) | scales((M, blocks), (blocks, N), device_type=CPU)
        assert check(**given, k_alignment=alignment) == "bfloat16"


@pytest.mark.parametrize("a", [None, (), (1,), (1, 1)])
@pytest.mark.parametrize("b", [None, (), (1,), (1, 1)])
def test_one_scale_of_any_rank_or_none(a, b):
    assert check(**call(device_type=CPU) | scales(a, b, device_type=CPU)) == "bfloat16"


ALL = "scale_a [40, blocks] with scale_b [blocks, 48]", "3 to 5 blocks", "scale_a of 1 element goes with scale_b of 1"
WRONG = {
    "too few blocks": ((M, 2), (2, N), "scale_a has shape [40, 2]; another number of blocks is needed"),
    "too many blocks": ((M, 6), (6, N), "scale_a has shape [40, 6]; another number of blocks is needed"),
    "another number of them": ((M, 3), (4, N), "scale_b has shape [4, 48]; [3, 48] is needed"),
    "scale_b turned": ((M, 3), (N, 3), "scale_b has shape [48, 3]; [3, 48] is needed"),
    "scale_a turned": ((3, M), (3, N), "scale_a has shape [3, 40]; [40, blocks] is needed"),
    "no scale_b": ((M, 3), None, "scale_b is missing; [3, 48] is needed"),
    "no scale_a": (None, (3, N), "scale_a is missing; [40, blocks] is needed"),
    "one and blocks": ((1,), (3, N), "scale_a has shape [1]; [40, blocks] is needed"),
    "by group": ((1,), (E,), "scale_a has shape [1]; [40, blocks] is needed"),
    "by row and column": ((M,), (N,), "scale_a has shape [40]; [40, blocks] is needed"),
    "rank 3": ((M, 3, 1), (3, N, 1), "scale_a has shape [40, 3, 1]; [40, blocks] is needed"),
}


@pytest.mark.parametrize("case", WRONG)
def test_scales_of_another_shape(case):
    a, b, words = WRONG[case]
    assert_refused(call() | scales(a, b), words, *ALL)


def test_scales_of_another_dtype_or_device():
    given = call() | scales((M, 3), (3, N))
    assert_refused(given | {"scale_a": array(M, 3, dtype="float16")}, "scale_a has dtype float16", kind=TypeError)
    assert_refused(given | {"scale_b": scale(3, N, device=1)}, "scale_b is on cuda:1 but mat_a is on cuda:0")
    assert_refused(call("float16") | scales((M, 3), (3, N)), "scale_a is given, but the inputs are float16")


@pytest.mark.parametrize("value", [0, 2, 64, 256, -128, 1 << 80])
def test_an_alignment_that_is_none(value):
    assert_refused(call() | {"k_alignment": value}, f"k_alignment is {value}; 1 is needed, or 128 where every group")


@pytest.mark.parametrize("value", ["128", 128.0, [128]])
def test_an_alignment_that_is_no_number(value):
    assert_refused(call() | {"k_alignment": value}, "k_alignment is a ", "128 where every group", kind=TypeError)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bits_need_no_alignment(dtype):
    assert_refused(
        call(dtype) | {"k_alignment": 128}, f"k_alignment is 128, but the inputs are {dtype}", "leave it out"
    )
    assert check(**call(dtype, device_type=CPU), k_alignment=1) == dtype


@pytest.mark.parametrize("dtype", ["float16", E4M3])
def test_outputs_are_bfloat16_or_float32(dtype):
    words = f"the output would be {dtype}", "bfloat16 or float32; convert the result"
    assert_refused(call() | {"out_dtype": dtype}, *words)
    assert_refused(call() | {"out": array(E, M, N, dtype=dtype)}, *words)
    for taken in ("bfloat16", "float32"):
        assert check(**call(device_type=CPU), out_dtype=taken) == taken


@pytest.mark.parametrize("name", ["a_index", "b_index"])
def test_an_index_goes_with_16_bits(name):
    given = call() | {name: array(K, dtype="int32")}
    assert_refused(given, f"{name} is given, but mat_a has float8_e4m3fn; it goes with float16 and bfloat16")


def test_an_output_that_shares_memory_with_scales():
    given = call() | scales((M, 3), (3, N))
    out = scale(E, M, N)
    out.address = given["scale_a"].address
    assert_refused(given | {"out": out, "out_dtype": "float32"}, "out shares memory with scale_a")


def test_a_gpu_without_fp8():
    with pytest.raises(gg_runtime.UnsupportedError, match="compute capability 9.0"):
        gg_runtime.explain(**renamed(call()), device=A100)


def renamed(given: dict) -> dict:
    return {{"mat_a": "a", "mat_b": "b"}.get(name, name): value for name, value in given.items()}


def by_columns(rows, columns):
    return array(rows, columns, strides=(1, rows), dtype=E4M3)


def aligned(**others) -> dict:
    """K contiguous in both operands, with scales of 6 blocks."""
    k = 768
    a = array(256, k, dtype=E4M3)
    return {"a": a, "b": by_columns(k, 512), "offs": array(E, dtype="int32")} | scales((256, 6), (6, 512)) | others


TMA, POINTERS = "hopper_ragged_k_block_scales", "basic_ragged_k_block_scales"
CHOICES = {
    "promised": ({"k_alignment": 128}, TMA),
    "not promised": ({}, POINTERS),
    "a scale is left out": ({"k_alignment": 128, "scale_a": None, "scale_b": scale(1)}, POINTERS),
    "one scale each": ({"k_alignment": 128, "scale_a": scale(1), "scale_b": scale(1)}, TMA),
    "mat_a with M contiguous": ({"k_alignment": 128, "a": by_columns(256, 768)}, POINTERS),
    "float32": ({"k_alignment": 128, "out_dtype": "float32"}, TMA),
}


@pytest.mark.parametrize("case", CHOICES)
def test_what_is_promised_decides_the_kernel(case):
    others, kernel = CHOICES[case]
    found = gg_runtime.explain(**aligned(**others), device=H200)
    assert found.variant is not None and found.variant.startswith(kernel)


def test_few_outputs_of_a_long_k_are_summed_in_parts():
    k = 65536
    a = array(256, k, dtype=E4M3)
    given = {"a": a, "b": by_columns(k, 256)} | scales((256, k // 128), (k // 128, 256))
    found = gg_runtime.explain(**aligned(**given), out_dtype="float32", k_alignment=128, device=H200)
    assert [part["variant"].partition("_sm90")[0] for part in found.parts] == [TMA, "add_parts"]
