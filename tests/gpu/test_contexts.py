"""Streams that do not belong to the primary context: those of a green context work, those of another one are named."""

import ctypes

import pytest

torch = pytest.importorskip("torch")

import gg_runtime  # noqa: E402
from cases import row_major  # noqa: E402
from oracle import assert_exact  # noqa: E402

SM_RESOURCE, DEFAULT_STREAM, NON_BLOCKING = 1, 1, 1
RESOURCE_BYTES = 1024  # more than CUdevResource has in any version


@pytest.fixture
def driver():
    return ctypes.CDLL("libcuda.so.1")


def made(code: int, what: str) -> None:
    assert code == 0, f"{what} failed with {code}"


@pytest.fixture
def green_stream(driver):
    """Of 32 multiprocessors of the current device."""
    if not hasattr(driver, "cuGreenCtxStreamCreate"):
        pytest.skip("this driver has no green contexts")
    every, some, rest = (ctypes.create_string_buffer(RESOURCE_BYTES) for _ in range(3))
    count, description = ctypes.c_uint(1), ctypes.c_void_p()
    context, stream = ctypes.c_void_p(), ctypes.c_void_p()
    torch.zeros(1, device="cuda")
    made(driver.cuDeviceGetDevResource(0, every, SM_RESOURCE), "cuDeviceGetDevResource")
    split = driver.cuDevSmResourceSplitByCount(some, ctypes.byref(count), every, rest, 0, 32)
    made(split, "cuDevSmResourceSplitByCount")
    made(driver.cuDevResourceGenerateDesc(ctypes.byref(description), some, 1), "cuDevResourceGenerateDesc")
    made(driver.cuGreenCtxCreate(ctypes.byref(context), description, 0, DEFAULT_STREAM), "cuGreenCtxCreate")
    made(driver.cuGreenCtxStreamCreate(ctypes.byref(stream), context, NON_BLOCKING, 0), "cuGreenCtxStreamCreate")
    yield torch.cuda.ExternalStream(stream.value)
    torch.cuda.synchronize()
    driver.cuStreamDestroy_v2(stream)
    driver.cuGreenCtxDestroy(context)


@pytest.mark.parametrize("groups", [4, 64], ids=["by value", "uploaded"])
def test_a_stream_of_a_green_context(green_stream, groups):
    A, B = row_major([(64, 96, 128)] * groups)
    made_outside = gg_runtime.Plan(A, B)
    torch.cuda.synchronize()
    with torch.cuda.stream(green_stream):
        one_shot = gg_runtime.group_gemm(A, B)
        made_inside = gg_runtime.Plan(A, B)
        made_inside.run()
        made_outside.run()
    torch.cuda.synchronize()
    for outputs in (one_shot, made_inside.out, made_outside.out):
        assert_exact(outputs, A, B)


def test_a_stream_of_another_context_is_named(driver):
    A, B = row_major([(64, 96, 128)] * 4)
    torch.cuda.synchronize()
    primary, other, stream = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    made(driver.cuCtxGetCurrent(ctypes.byref(primary)), "cuCtxGetCurrent")
    made(driver.cuCtxCreate_v2(ctypes.byref(other), 0, 0), "cuCtxCreate")
    try:
        made(driver.cuStreamCreate(ctypes.byref(stream), NON_BLOCKING), "cuStreamCreate")
        made(driver.cuCtxSetCurrent(primary), "cuCtxSetCurrent")
        with torch.cuda.stream(torch.cuda.ExternalStream(stream.value)):
            with pytest.raises(gg_runtime.CudaError, match="belongs to another CUDA context than the primary one"):
                gg_runtime.group_gemm(A, B)
    finally:
        driver.cuCtxSetCurrent(primary)
        driver.cuCtxDestroy_v2(other)
    assert_exact(gg_runtime.group_gemm(A, B), A, B)
