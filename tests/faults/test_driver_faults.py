"""Drivers that are absent, too old or failing: the right exception, with what came, what is needed and what to do."""

import ctypes
import os

import pytest

import gg_runtime
from faults.fake_driver import SM_80, assert_says, build_driver

ONE_CALL = "report(failure(group_gemm, *operands([(64, 64, 64)])[:2], out=[matrix(64, 64)]))"
TWO_CALLS = """
    A, B, out = operands([(64, 64, 64)])
    report(failure(group_gemm, A, B, out=out))
    report(group_gemm(A, B, out=out) == out)
"""


def the_failure(fake_cuda, **settings) -> dict:
    (error,) = fake_cuda.run(ONE_CALL, **SM_80 | settings).reported
    return error


def a_driver_is_installed() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


@pytest.mark.skipif(a_driver_is_installed(), reason="this machine has an NVIDIA driver, which dlopen would find")
def test_no_driver_names_the_library_and_asks_for_the_driver(fake_cuda, tmp_path):
    (error,) = fake_cuda.run(ONE_CALL, driver=tmp_path).reported
    assert_says(error, "UnsupportedError", "libcuda.so.1", "install the driver")


def test_a_file_that_is_no_library_is_no_driver(fake_cuda, tmp_path):
    (tmp_path / "libcuda.so.1").write_text("not a library")
    (error,) = fake_cuda.run(ONE_CALL, driver=tmp_path).reported
    assert_says(error, "UnsupportedError", "libcuda.so.1")


def test_a_library_without_the_driver_functions_is_told_from_a_driver(fake_cuda, tmp_path):
    folder = build_driver(tmp_path / "bare", "-DcuLibraryLoadData=renamed_away")
    (error,) = fake_cuda.run(ONE_CALL, driver=folder).reported
    assert_says(error, "UnsupportedError", "cuLibraryLoadData", "12.0", "update the driver")


def test_the_toolkits_stub_is_named_as_such(fake_cuda):
    assert_says(the_failure(fake_cuda, FAKE_CUDA_FAIL="cuInit:34:1"), "UnsupportedError", "stub", "LD_LIBRARY_PATH")


def test_a_driver_older_than_cuda_12_says_both_versions(fake_cuda):
    error = the_failure(fake_cuda, FAKE_CUDA_DRIVER=11080)
    assert_says(error, "UnsupportedError", "11.8", "12.0", "update the driver")


def test_a_machine_without_gpus_says_what_is_visible(fake_cuda):
    error = the_failure(fake_cuda, FAKE_CUDA_DEVICES=0, CUDA_VISIBLE_DEVICES="")
    assert_says(error, "UnsupportedError", "no GPU", 'CUDA_VISIBLE_DEVICES is ""')


def test_an_error_may_quote_what_is_not_utf_8(fake_cuda):
    error = the_failure(fake_cuda, FAKE_CUDA_DEVICES=0, CUDA_VISIBLE_DEVICES=os.fsdecode(b"\xff"))
    assert_says(error, "UnsupportedError", "no GPU", 'CUDA_VISIBLE_DEVICES is "\N{REPLACEMENT CHARACTER}"')


def test_a_device_that_is_not_there_is_a_wrong_argument(fake_cuda):
    (error,) = fake_cuda.run("report(failure(group_gemm, *operands([(8, 8, 8)], device=2)[:2]))").reported
    assert_says(error, "ValueError", "cuda:2", "2 CUDA devices")


def test_a_gpu_that_no_kernel_runs_on_lists_what_was_built(fake_cuda):
    error = the_failure(fake_cuda, FAKE_CUDA_SM=75)
    built = sorted({kernel["sm"] for kernel in gg_runtime.kernels()})
    assert_says(error, "UnsupportedError", "Fake GPU 0", "sm_75", "8.0 or later", *(f"sm_{sm}" for sm in built))


def test_a_gpu_with_too_little_shared_memory_for_every_variant_says_how_much_it_has(fake_cuda):
    assert_says(the_failure(fake_cuda, FAKE_CUDA_SHARED=1024), "UnsupportedError", "1024", "shared memory")


def test_a_variant_that_needs_more_shared_memory_than_the_gpu_has_cannot_be_forced(fake_cuda):
    fitting = [k for k in gg_runtime.kernels() if (k["sm"], k["dtype"], k["layout"]) == (80, "fp16", "nn")]
    hungry = max(fitting, key=lambda kernel: kernel["shared_bytes"])
    (error,) = fake_cuda.run(f"""
        A, B, out = operands([(64, 64, 64)])
        report(failure(Plan, A, B, out=out, variant="{hungry["name"]}"))
    """, FAKE_CUDA_SM=80, FAKE_CUDA_SHARED=hungry["shared_bytes"] - 1).reported  # fmt: skip
    assert_says(error, "ValueError", str(hungry["shared_bytes"]), str(hungry["shared_bytes"] - 1))


CALLS = [
    "cuInit",
    "cuDriverGetVersion",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDevicePrimaryCtxRetain",
    "cuCtxSetCurrent",
    "cuLibraryLoadData",
    "cuLibraryGetKernel",
    "cuKernelGetFunction",
    "cuKernelGetParamInfo",
    "cuOccupancyMaxActiveBlocksPerMultiprocessor",
    "cuLaunchKernelEx",
]


@pytest.mark.parametrize("call", CALLS)
def test_a_failed_call_is_named_and_not_remembered(fake_cuda, call):
    error, second = fake_cuda.run(TWO_CALLS, FAKE_CUDA_FAIL=f"{call}:2:1", **SM_80).reported
    assert_says(error, "CudaError", call, "CUDA_ERROR_OUT_OF_MEMORY")
    assert (error["call"], error["code"], error["name"]) == (call, 2, "CUDA_ERROR_OUT_OF_MEMORY")
    assert second is True, "the second call tries again and succeeds"


def test_a_failed_load_says_which_kernel_on_which_gpu(fake_cuda):
    error = the_failure(fake_cuda, FAKE_CUDA_FAIL="cuLibraryLoadData:2:1")
    assert_says(error, "CudaError", "basic_sm80_fp16_nn_a16", "cuda:0", "Fake GPU 0", "sm_80")


@pytest.mark.parametrize("code", [200, 209])
def test_an_image_that_the_driver_refuses_is_compared_with_the_drivers_age(fake_cuda, code):
    error = the_failure(fake_cuda, FAKE_CUDA_FAIL=f"cuLibraryLoadData:{code}:1")
    assert_says(error, "CudaError", "the driver supports CUDA 12.8", "needs 12.0", "not the reason")


def test_a_driver_without_its_ptx_compiler_is_told_what_to_install(fake_cuda):
    error, second = fake_cuda.run(TWO_CALLS, FAKE_CUDA_SM=100, FAKE_CUDA_FAIL="cuLibraryLoadData:221:1").reported
    assert_says(error, "CudaError", "sm_80 PTX", "libnvidia-ptxjitcompiler.so.1", "install")
    assert second is True


def test_a_fault_of_earlier_work_is_not_blamed_on_this_call(fake_cuda):
    error = the_failure(fake_cuda, FAKE_CUDA_FAIL="cuLaunchKernelEx:700:1")
    assert_says(error, "CudaError", "CUDA_ERROR_ILLEGAL_ADDRESS", "earlier work", "compute-sanitizer")


def test_a_code_without_a_name_is_still_reported(fake_cuda):
    error = the_failure(fake_cuda, FAKE_CUDA_FAIL="cuLaunchKernelEx:4242:1")
    assert_says(error, "CudaError", "4242")


def test_the_context_is_put_back_when_a_launch_fails(fake_cuda):
    ran = fake_cuda.run(ONE_CALL, FAKE_CUDA_FAIL="cuLaunchKernelEx:700:1", **SM_80)
    assert ran.of("cuCtxSetCurrent")[-1]["device"] == -1


def test_a_driver_before_12_4_cannot_tell_parameters_and_still_launches(fake_cuda):
    ran = fake_cuda.run(ONE_CALL, driver=fake_cuda.before_12_4, **SM_80)
    assert ran.reported[0]["type"] is None
    assert len(ran.launches) == 1


def test_a_forked_child_is_told_to_spawn(fake_cuda):
    ran = fake_cuda.run("""
        import os
        A, B, out = operands([(64, 64, 64)])
        group_gemm(A, B, out=out)
        child = os.fork()
        if child == 0:
            report(failure(group_gemm, A, B, out=out))
            os._exit(0)
        os.waitpid(child, 0)
        report(group_gemm(A, B, out=out) == out)
    """, **SM_80)  # fmt: skip
    in_child, in_parent = ran.reported
    assert_says(in_child, "UnsupportedError", "fork", "spawn")
    assert in_parent is True
    assert len(ran.launches) == 2


def test_a_child_forked_before_the_first_use_works(fake_cuda):
    ran = fake_cuda.run("""
        import os
        A, B, out = operands([(64, 64, 64)])
        child = os.fork()
        if child == 0:
            report(group_gemm(A, B, out=out) == out)
            os._exit(0)
        os.waitpid(child, 0)
    """, **SM_80)  # fmt: skip
    assert ran.reported == [True]


def test_an_error_survives_pickling_as_it_is():
    import pickle

    error = gg_runtime.CudaError("text", "cuInit", 999, "CUDA_ERROR_UNKNOWN")
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.call, copy.code, copy.name) == ("text", "cuInit", 999, "CUDA_ERROR_UNKNOWN")
