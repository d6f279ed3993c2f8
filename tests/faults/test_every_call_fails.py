"""Every single call of the driver fails once: a CudaError that names it, and the same work done again is right."""

import pytest

from faults.fake_driver import assert_says

# Each failure in a child of its own, forked before the first use; the parent never asks the driver.
EACH = """
import os

def outcomes(number, log):
    os.environ.update(FAKE_CUDA_FAIL_NTH=f"{{number}}:2", FAKE_CUDA_LOG=log)
    work = prepare()
    first = failure(work)
    os.environ["FAKE_CUDA_FAIL_NTH"] = ""
    report([number, first, failure(work), failure(work)["type"]])

def in_child(number):
    child = os.fork()
    if child == 0:
        outcomes(number, f"{{os.environ['FAKE_CUDA_LOG']}}.{{number}}")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, number

{prepare}

for number in range(1, 200):
    in_child(number)
    log = f"{{os.environ['FAKE_CUDA_LOG']}}.{{number}}"
    lines = open(log).read().splitlines()
    report([line for line in lines if '"failed"' in line])
    report([line.split('"symbol": "')[1].split('"')[0] for line in lines if '"symbol"' in line])
    if not any('"failed"' in line for line in lines):
        break
"""

LIST = """
def prepare():
    A, B, out = operands([(64, 64, 64), (128, 64, 32)])
    return lambda: group_gemm(A, B, out=out)
"""
UPLOADED = """
def prepare():
    import cupy
    A, B = ([cupy.empty((64, 64), "float16") for _ in range(40)] for _ in "AB")
    return lambda: group_gemm(A, B)
"""
RAGGED = """
def prepare():
    mat_a, mat_b, offs = ragged(512, 256, 128, 4, device=1)
    out = matrix(512, 256, device=1)
    return lambda: grouped_mm(mat_a, mat_b, offs=offs, out=out)
"""
LAYER = """
def prepare():
    def array(*shape, dtype="bfloat16"):
        return ExchangeArray(*shape, address=fresh_address(), dtype=dtype)
    x, out, w1, w2 = array(300, 64), array(300, 64), array(4, 64, 128), array(4, 64, 64)
    weights, ids = array(300, 8, dtype="float32"), array(300, 8, dtype="int32")
    needed = gg_runtime.fused_experts_workspace(300, 8, 4, 64, 64)
    workspace = array(needed, dtype="uint8")
    return lambda: gg_runtime.fused_experts(x, w1, w2, weights, ids, out=out, workspace=workspace)
"""
WAITING = """
def prepare():
    A, B, out = operands([(64, 64, 64)], kind=CapsuleArray)
    return lambda: group_gemm(A, B, out=out)
"""
INTERFACE = """
def prepare():
    class Bare(InterfaceArray):
        __dlpack_device__ = None
        def __getattribute__(self, name):
            if name == "__dlpack_device__":
                raise AttributeError(name)
            return super().__getattribute__(name)
    A, B, out = operands([(64, 64, 64)], kind=Bare)
    return lambda: group_gemm(A, B, out=out)
"""
# Put back while an error is on its way out, or when the work is done: nobody could do anything about it.
RESTORED = ("cuCtxSetCurrent", "cuThreadExchangeStreamCaptureMode")
RATES = 3  # two clocks and a bus width, which a GPU need not tell: the cost model does without


@pytest.mark.parametrize("sm", [80, 90])
@pytest.mark.parametrize(
    "prepare",
    [LIST, UPLOADED, RAGGED, LAYER, WAITING, INTERFACE],
    ids=["list", "uploaded", "ragged", "layer", "waiting", "interface"],
)
def test_every_call_may_fail_once(fake_cuda, prepare, sm):
    ran = fake_cuda.run(EACH.format(prepare=prepare), FAKE_CUDA_SM=sm)
    reported = iter(ran.reported)
    seen, untold = set(), 0
    for (number, first, second, third), failed, launches in zip(reported, reported, reported):
        assert second["type"] is third is None, (number, second, third)
        if not failed:  # past the last call of all
            assert first["type"] is None
            whole = launches[: len(launches) // 3]
            assert launches == whole * 3 and whole
            break
        call = failed[0].split('"')[3]
        seen.add(call)
        if first["type"] is None:
            untold += call == "cuDeviceGetAttribute"
            assert call in (*RESTORED, "cuDeviceGetAttribute") and untold <= RATES, (number, call)
            continue
        assert_says(first, "CudaError", call, "CUDA_ERROR_OUT_OF_MEMORY")
        assert (first["call"], first["code"]) == (call, 2)
    else:
        raise AssertionError("the walk did not come to the last call")
    assert {"cuInit", "cuDevicePrimaryCtxRetain", "cuLibraryLoadData", "cuLaunchKernelEx"} < seen, seen
    assert ("cuStreamSynchronize" in seen) == (prepare is WAITING)
    assert ("cuPointerGetAttribute" in seen) == (prepare is INTERFACE)
    if prepare in (RAGGED, LAYER):
        assert ("cuTensorMapEncodeTiled" in seen) == (sm == 90)
