"""Measured rows serve the GPU that the driver names; its other facts scale the model for all others."""

import pytest

import gg_runtime

ASK = """
    facts = gg_runtime._C.device(0)
    mat_a, mat_b, offs = ragged(640, 4096, 7168, 32, layout="nt", dtype="bfloat16")
    out = matrix(640, 4096, dtype="bfloat16")
    seen = explain(mat_a, mat_b, offs=offs, out=out)
    grouped_mm(mat_a, mat_b, offs=offs, out=out)
    grouped_mm(mat_a, mat_b, offs=offs, out=out)
    report([facts["clock_mhz"], facts["memory_gb_s"], seen.variant, seen.reason])
"""
H200 = {"FAKE_CUDA_NAME": "NVIDIA H200", "FAKE_CUDA_SMS": 132}


def asked(fake_cuda, **settings) -> list:
    """Clock, memory rate, variant and reason, when the launches were of that variant."""
    ran = fake_cuda.run(ASK, **settings)
    ((*facts, variant, reason),) = ran.reported
    cubin = gg_runtime.manifest()["artifacts"][variant]["cubin"]["sha256"]
    assert [ran.hash_of(launch) for launch in ran.launches] == [cubin] * 2
    return [*facts, variant, reason]


def test_the_measured_gpu_takes_the_measured_row(fake_cuda):
    *_, variant, reason = asked(fake_cuda, **H200)
    assert reason.startswith("measured on NVIDIA H200: ")
    assert asked(fake_cuda)[2] != variant, "or else the tests below would show nothing"


@pytest.mark.parametrize(
    "others", [{"FAKE_CUDA_NAME": "NVIDIA H20"}, {"FAKE_CUDA_NAME": "NVIDIA H200 NVL"}, {"FAKE_CUDA_SMS": 130}]
)
def test_a_gpu_of_another_name_or_size_takes_the_model(fake_cuda, others):
    *_, variant, reason = asked(fake_cuda, **H200 | others)
    name = others.get("FAKE_CUDA_NAME", "NVIDIA H200")
    assert reason.startswith(f"cost model measured on NVIDIA H200, scaled to {name} by tensor rate ")
    assert variant != asked(fake_cuda, **H200)[2]


def test_clock_and_memory_rate_are_the_drivers(fake_cuda):
    settings = {"FAKE_CUDA_CLOCK_KHZ": 1980000, "FAKE_CUDA_MEMORY_CLOCK_KHZ": 2619000, "FAKE_CUDA_BUS_BITS": 6144}
    clock, memory, _, reason = asked(fake_cuda, FAKE_CUDA_NAME="NVIDIA H20", FAKE_CUDA_SMS=78, **settings)
    assert (clock, memory) == (1980, pytest.approx(4022.8, abs=0.1))
    assert "by tensor rate 148/989 TFLOP/s, clock 1980/1980 MHz and memory rate 4023/4814 GB/s: " in reason


@pytest.mark.parametrize("clock", [None, 0, -1])
def test_rates_that_the_driver_does_not_tell_are_no_error(fake_cuda, clock):
    settings = {} if clock is None else {"FAKE_CUDA_CLOCK_KHZ": clock, "FAKE_CUDA_MEMORY_CLOCK_KHZ": clock}
    *rates, _, reason = asked(fake_cuda, FAKE_CUDA_BUS_BITS=6144, **settings)
    assert rates == [0, 0]
    assert reason.startswith("cost model measured on NVIDIA H200, scaled to Fake GPU 0 by multiprocessors 132/132: ")
