"""A context that someone else's kernel broke: said as such, by every call, and not taken for this call's own fault."""

import pytest

from faults.fake_driver import SM_80, assert_says

BREAK = """
    import ctypes
    break_context = ctypes.CDLL("libcuda.so.1").fake_cuda_break_context
"""
# A launch, one that waits, one of a plan that was made before, one of a list that is uploaded, and a first load.
CALLS = (
    BREAK
    + """
    import cupy
    A, B, out = operands([(64, 64, 64)])
    plan = Plan(A, B, out=out)
    waiting = operands([(64, 64, 64)], kind=CapsuleArray)
    packed = [[cupy.empty((16, 16), "float16") for _ in range(40)] for _ in "AB"]
    mat_a, mat_b, offs = ragged(64, 64, 64, 3)
    calls = {
        "group_gemm": lambda: group_gemm(A, B, out=out),
        "waiting": lambda: group_gemm(*waiting[:2], out=waiting[2]),
        "run": plan.run,
        "packed": lambda: group_gemm(*packed),
        "grouped_mm": lambda: grouped_mm(mat_a, mat_b, offs=offs, out=matrix(64, 64)),
    }
"""
)
STICKY = [214, 220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721]


@pytest.mark.parametrize("loaded", [True, False], ids=["in use", "at the first load"])
def test_every_call_says_that_earlier_work_broke_the_context(fake_cuda, loaded):
    ran = fake_cuda.run(CALLS + f"""
    if {loaded}:
        [call() for call in calls.values()]
    break_context(700)
    report([failure(call) for call in calls.values()])
    report([gg_runtime.verify() > 0, explain(A, B, out=out).variant == plan.variant])
    break_context(0)
    report([failure(call)["type"] for call in calls.values()])
    """, **SM_80)  # fmt: skip
    broken, others, mended = ran.reported
    for error in broken:
        assert_says(error, "CudaError", "CUDA_ERROR_ILLEGAL_ADDRESS", "already in error from earlier work")
        assert_says(error, "CudaError", "a kernel launched before this call faulted", "compute-sanitizer")
        assert error["code"] == 700
    assert others == [True, True], "what asks the GPU for nothing goes on"
    assert mended == [None] * 5


@pytest.mark.parametrize("code", STICKY)
def test_every_code_that_ends_a_context_is_told_as_earlier_work(fake_cuda, code):
    ran = fake_cuda.run(CALLS + f"""
    break_context({code})
    report(failure(calls["group_gemm"]))
    """)  # fmt: skip
    assert_says(ran.reported[0], "CudaError", str(code), "earlier work")


@pytest.mark.parametrize("code", [1, 2, 3, 201, 400, 701, 709, 720, 801, 900, 901, 999])
def test_other_codes_are_not(fake_cuda, code):
    ran = fake_cuda.run(CALLS + """
    report(failure(calls["group_gemm"]))
    report(failure(calls["group_gemm"])["type"])
    """, FAKE_CUDA_FAIL=f"cuLaunchKernelEx:{code}:1", **SM_80)  # fmt: skip
    error, second = ran.reported
    assert_says(error, "CudaError", "cuLaunchKernelEx", str(code))
    assert "earlier work" not in error["text"]
    assert second is None


def test_who_waits_for_the_kernel_does_not_know_whose_fault_it_is(fake_cuda):
    """The launch was taken, so that the context was whole: this kernel, or one that ran when it was launched."""
    ran = fake_cuda.run(CALLS + """
    report(failure(calls["waiting"]))
    report(failure(calls["waiting"])["type"])
    """, FAKE_CUDA_FAIL="cuStreamSynchronize:719:1", **SM_80)  # fmt: skip
    error, second = ran.reported
    assert_says(error, "CudaError", "cuStreamSynchronize", "CUDA_ERROR_LAUNCH_FAILED", "of this call or one that was")
    assert "earlier work" not in error["text"]
    assert second is None


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (2, ["CUDA_ERROR_OUT_OF_MEMORY", "no memory left", "free some", "call again"]),
        (400, ["CUDA_ERROR_INVALID_HANDLE", "current stream", "destroyed, or belongs to another GPU or context"]),
        (709, ["CUDA_ERROR_CONTEXT_IS_DESTROYED", "primary context was destroyed or reset", "new process"]),
    ],
)
@pytest.mark.parametrize("call", ["cuLaunchKernelEx", "cuStreamSynchronize"])
def test_codes_that_have_a_remedy_say_it_and_the_next_call_is_right(fake_cuda, call, code, words):
    ran = fake_cuda.run(CALLS + """
    report(failure(calls["waiting"]))
    report(failure(calls["waiting"])["type"])
    """, FAKE_CUDA_FAIL=f"{call}:{code}:1", **SM_80)  # fmt: skip
    error, second = ran.reported
    assert_says(error, "CudaError", call, *words)
    assert second is None
    assert sum("failed" not in launch for launch in ran.launches) == (2 if call == "cuStreamSynchronize" else 1)


def test_no_memory_for_a_load_names_the_kernel_and_the_way_out(fake_cuda):
    ran = fake_cuda.run("""
        A, B, out = operands([(64, 64, 64)])
        for _ in range(3):
            report(failure(group_gemm, A, B, out=out))
        report(failure(gg_runtime.preload)["type"])
    """, FAKE_CUDA_FAIL="cuLibraryLoadData:2:2", **SM_80)  # fmt: skip
    first, second, third, preload = ran.reported
    for error in (first, second):
        assert_says(error, "CudaError", "loading basic_sm80_fp16_nn", "Fake GPU 0", "free some", "call again")
    assert third["type"] is preload is None


def test_a_preload_that_runs_out_of_memory_goes_on_where_it_ended(fake_cuda):
    ran = fake_cuda.run("""
        report(failure(gg_runtime.preload, 0))
        report(gg_runtime.preload(0))
    """, FAKE_CUDA_FAIL="cuKernelGetFunction:2:1", **SM_80)  # fmt: skip
    error, kernels = ran.reported
    assert_says(error, "CudaError", "cuKernelGetFunction", "free some")
    assert len(ran.of("cuLibraryLoadData")) == kernels, "what had been loaded is not loaded again"
