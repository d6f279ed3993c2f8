"""Outputs, scratch and streams of the frameworks, by stand-ins: torch before 2.10, and CuPy."""

import itertools

import pytest

from faults.experts import PRELUDE
from faults.fake_driver import SM_80, assert_says
from faults.parameters import expected_record, list_arguments, read_list


def only_record(ran) -> dict:
    (launch,) = ran.launches
    _, (record,) = read_list(list_arguments(launch).words, 1)
    return record


@pytest.mark.parametrize("device", [0, 1])
def test_old_torch_tensors_are_read_by_their_attributes(fake_cuda, device):
    ran = fake_cuda.run(f"""
        import torch
        A, B, out = operands([(40, 56, 24)], layout="nt", pad=2, offset=3, kind=torch.Tensor, device={device},
                             dtype=torch.bfloat16)
        group_gemm(A, B, out=out)
        report([x.facts() for x in (A[0], B[0], out[0])])
    """, **SM_80)  # fmt: skip
    assert only_record(ran) == expected_record(*ran.reported[0])
    assert (ran.launches[0]["context"], ran.launches[0]["stream"]) == (device, 0x200 + device)


def test_torch_outputs_of_one_width_share_a_block_and_lie_on_16_bytes(fake_cuda):
    ran = fake_cuda.run("""
        import torch
        A, B, _ = operands([(40, 56, 24), (3, 56, 8), (16, 7, 8), (5, 7, 8), (16, 7, 24)], kind=torch.Tensor)
        out = group_gemm(A, B)
        report([out_i.facts() for out_i in out])
        report(torch.allocations)
    """, **SM_80)  # fmt: skip
    outputs, allocations = ran.reported
    assert [output["shape"] for output in outputs] == [[40, 56], [3, 56], [16, 7], [5, 7], [16, 7]]
    for output in outputs:
        assert output["address"] % 16 == 0
        assert output["strides"] == [output["shape"][1], 1]
    assert outputs[1]["address"] == outputs[0]["address"] + 2 * 40 * 56
    assert len(allocations) == 1 + 3, "5 rows of 7 elements would put their successor off 16 bytes"
    spans = sorted(
        (output["address"], output["address"] + 2 * output["shape"][0] * output["shape"][1]) for output in outputs
    )
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))


def test_a_torch_output_that_requires_grad_is_refused_while_gradients_are_recorded(fake_cuda):
    ran = fake_cuda.run("""
        import torch
        A, B, _ = operands([(8, 8, 8)], kind=torch.Tensor)
        out = [matrix(8, 8, kind=torch.nn.Parameter)]
        report(failure(group_gemm, A, B, out=out))
        torch.grad_enabled = False
        report(failure(group_gemm, A, B, out=out))
    """, **SM_80)  # fmt: skip
    assert ran.reported[0]["type"] == "ValueError"
    assert "out[0] requires grad" in ran.reported[0]["text"] and "detach" in ran.reported[0]["text"]
    assert ran.reported[1]["type"] is None


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_cupy_outputs_lie_on_the_inputs_device_and_its_current_stream_is_used(fake_cuda, dtype):
    ran = fake_cuda.run(f"""
        import cupy
        with cupy.Device(1):
            A, B = cupy.empty((40, 24), "{dtype}"), cupy.empty((24, 56), "{dtype}")
        (out,) = group_gemm([A], [B])
        report([x.facts() for x in (A, B, out)])
        report([out.device, out.dtype])
    """, **SM_80)  # fmt: skip
    arrays, made = ran.reported
    assert only_record(ran) == expected_record(*arrays)
    assert made == [1, dtype]
    assert (ran.launches[0]["context"], ran.launches[0]["stream"]) == (1, 0x101)


def test_launches_before_one_that_fails_are_waited_for(fake_cuda):
    """Of a framework that cannot be told to wait: it takes the memory back when the call raises."""
    ran = fake_cuda.run(PRELUDE + """
    import ctypes
    arrays, _ = layer(64, 8, 16, 64, 512)
    arrays = {name: CapsuleArray(*one.shape, address=one.address, strides=one.strides, dtype=one.dtype)
              for name, one in arrays.items()}
    ctypes.CDLL("libcuda.so.1").fake_fail_launch(3)
    report(failure(gg_runtime.fused_experts, **arrays))
    """)  # fmt: skip
    assert_says(ran.reported[0], "CudaError", "cuLaunchKernelEx")
    kept = [one["call"] for one in ran.calls if one["call"] in ("cuLaunchKernelEx", "cuStreamSynchronize")]
    assert kept == ["cuLaunchKernelEx"] * 2 + ["cuStreamSynchronize"]


def test_arrays_that_never_change_are_made_anew_but_not_written(fake_cuda):
    ran = fake_cuda.run("""
        import types
        jax = sys.modules["jax"] = types.ModuleType("jax")
        jax.Array = type("Array", (CapsuleArray,), {"__module__": "jax"})
        A, B, out = operands([(8, 8, 8)], kind=jax.Array)
        report(failure(group_gemm, A, B, out=out))
        report(failure(Plan, A, B))
        mat_a, mat_b, offs = ragged(8, 8, 8, 2, kind=jax.Array)
        report(failure(grouped_mm, mat_a, mat_b, offs=offs, out=out[0]))
    """, **SM_80)  # fmt: skip
    given, plan, ragged = ran.reported
    assert (given["type"], ragged["type"]) == ("ValueError", "ValueError") and plan["type"] == "TypeError"
    for error in (given, ragged):
        assert "never change" in error["text"] and "leave it out" in error["text"]
    assert "call group_gemm" in plan["text"]
    assert not ran.launches
