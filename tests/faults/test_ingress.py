"""Arrays by each protocol: the same addresses, sizes, strides, dtype, device and stream come out."""

import pytest

from arrays import FULL_NAMES
from embedded import KERNELS
from faults.fake_driver import SM_80
from faults.parameters import expected_record, list_arguments, ragged_arguments, read_list, read_ragged


@pytest.mark.parametrize("kind", ["ExchangeArray", "CapsuleArray", "InterfaceArray"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_protocol_gives_the_same_view(fake_cuda, kind, dtype):
    ran = fake_cuda.run(f"""
        A, B, out = operands([(40, 56, 24)], layout="nt", pad=2, offset=3, kind={kind}, dtype="{dtype}", device=1)
        report(Plan(A, B, out=out).variant)
        group_gemm(A, B, out=out)
        report([x.facts() for x in (A[0], B[0], out[0])])
    """, **SM_80)  # fmt: skip
    variant, arrays = ran.reported
    (launch,) = ran.launches
    _, (record,) = read_list(list_arguments(launch).words, 1)
    assert record == expected_record(*arrays)
    assert launch["context"] == 1
    assert KERNELS[variant]["dtype"] == {"float16": "fp16", "bfloat16": "bf16"}[dtype]


@pytest.mark.parametrize("kind", ["ExchangeArray", "CapsuleArray", "InterfaceArray"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn"])
def test_every_protocol_gives_the_same_ragged_product(fake_cuda, kind, dtype):
    """Three dimensions, ends in int32, scales in float32 and fp8."""
    ran = fake_cuda.run(f"""
        mat_a, mat_b, offs = ragged(40, 56, 24, 3, layout="nt", pad=2, kind={kind}, dtype="{dtype}", device=1)
        out = matrix(40, 56, kind={kind}, dtype="{dtype}", device=1)
        scale = matrix(1, 1, kind={kind}, dtype="float32", device=1) if "{dtype}" == "float8_e4m3fn" else None
        grouped_mm(mat_a, mat_b, offs=offs, out=out, scale_a=scale)
        report([[x.address, *x.strides] for x in (mat_a, mat_b, out, offs)] + [scale.address if scale else 0])
        report(explain(mat_a, mat_b, offs=offs, out=out).variant)
    """)
    (a, b, c, offs, scale), variant = ran.reported
    words = read_ragged(ragged_arguments(ran.launches[0]).words, "basic_ragged")
    found = [words[name] for name in ("a", "a_row", "a_col", "b", "b_group", "b_row", "b_col", "c", "c_row", "c_col")]
    assert found == [*a, *b, *c]
    assert (words["offs"], words["scale_a"], ran.launches[0]["context"]) == (offs[0], scale, 1)
    assert FULL_NAMES[KERNELS[variant]["dtype"]] == FULL_NAMES[KERNELS[variant]["out_dtype"]] == dtype


def test_capsules_are_all_released(fake_cuda):
    ran = fake_cuda.run("""
        A, B, out = operands([(40, 56, 24)], kind=CapsuleArray)
        for _ in range(3):
            group_gemm(A, B, out=out)
        report([[len(x.exported), x.released] for x in (A[0], B[0], out[0])])
    """, **SM_80)  # fmt: skip
    for exported, released in ran.reported[0]:
        assert exported == released > 0


@pytest.mark.parametrize(("entry", "stream"), [(None, 0), (1, 1), (2, 2), (0x7F00, 0x7F00)])
def test_the_array_interfaces_own_stream_is_used(fake_cuda, entry, stream):
    ran = fake_cuda.run(f"""
        InterfaceArray.stream = {entry}
        A, B, out = operands([(40, 56, 24)], kind=InterfaceArray)
        group_gemm(A, B, out=out)
    """, **SM_80)  # fmt: skip
    assert [launch["stream"] for launch in ran.launches] == [stream]


def test_an_object_that_is_no_array_is_named(fake_cuda):
    ran = fake_cuda.run("""
        A, B, out = operands([(8, 8, 8)] * 3)
        report(failure(group_gemm, [A[0], "text", A[2]], B))
        report(failure(group_gemm, A, [B[0], B[1], None]))
        report(failure(group_gemm, A, B, out=[out[0], out[1], 7]))
    """, **SM_80)  # fmt: skip
    for error, name, kind in zip(ran.reported, ("A[1]", "B[2]", "out[2]"), ("a str;", "None;", "an int;")):
        assert error["type"] == "TypeError"
        assert name in error["text"] and kind in error["text"], error


def test_a_framework_that_cannot_allocate_asks_for_outputs(fake_cuda):
    ran = fake_cuda.run("report(failure(group_gemm, *operands([(8, 8, 8)])[:2]))", **SM_80)
    assert ran.reported[0]["type"] == "TypeError"
    assert "out=" in ran.reported[0]["text"]


def test_arrays_of_unlike_frameworks_meet_in_one_call(fake_cuda):
    ran = fake_cuda.run("""
        A, _, _ = operands([(16, 24, 32)], kind=ExchangeArray)
        _, B, _ = operands([(16, 24, 32)], kind=InterfaceArray)
        _, _, out = operands([(16, 24, 32)], kind=CapsuleArray)
        report(group_gemm(A, B, out=out) == out)
    """, **SM_80)  # fmt: skip
    assert ran.reported == [True]
    assert len(ran.launches) == 1


def test_an_array_of_another_kind_of_device_is_refused(fake_cuda):
    ran = fake_cuda.run("report(failure(group_gemm, *operands([(8, 8, 8)], device_type=ROCM)[:2]))", **SM_80)
    assert ran.reported[0]["type"] == "ValueError"
    assert "A[0]" in ran.reported[0]["text"] and "neither CPU nor CUDA" in ran.reported[0]["text"]
