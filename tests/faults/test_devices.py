"""Which GPU, which stream, which thread: the tensors' device, the caller's stream, one load for all."""

import pytest

import gg_runtime
from faults.fake_driver import SM_80


def test_the_launch_goes_to_the_callers_current_stream_asked_each_time(fake_cuda):
    ran = fake_cuda.run("""
        A, B, out = operands([(64, 64, 64)])
        plan = Plan(A, B, out=out)
        for stream in (0, 0x1234, 0x5678):
            ExchangeArray.streams[0] = stream
            group_gemm(A, B, out=out)
            plan.run()
    """, **SM_80)  # fmt: skip
    assert [launch["stream"] for launch in ran.launches] == [0, 0, 0x1234, 0x1234, 0x5678, 0x5678]


def test_a_call_on_device_1_runs_in_its_context_and_puts_the_callers_back(fake_cuda):
    ran = fake_cuda.run("""
        import ctypes
        cuda = ctypes.CDLL("libcuda.so.1")
        here, after = ctypes.c_void_p(), ctypes.c_void_p()
        cuda.cuInit(0)
        cuda.cuDevicePrimaryCtxRetain(ctypes.byref(here), 0)
        cuda.cuCtxSetCurrent(here)
        ExchangeArray.streams = {0: 10, 1: 11}
        A, B, out = operands([(64, 64, 64)], device=1)
        group_gemm(A, B, out=out)
        cuda.cuCtxGetCurrent(ctypes.byref(after))
        report(here.value == after.value)
    """, **SM_80)  # fmt: skip
    (launch,) = ran.launches
    assert (launch["context"], launch["function_device"], launch["stream"]) == (1, 1, 11)
    assert ran.reported == [True]


def test_no_context_is_switched_when_the_right_one_is_current(fake_cuda):
    ran = fake_cuda.run("""
        import ctypes
        cuda = ctypes.CDLL("libcuda.so.1")
        context = ctypes.c_void_p()
        cuda.cuInit(0)
        cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
        cuda.cuCtxSetCurrent(context)
        A, B, out = operands([(64, 64, 64)])
        group_gemm(A, B, out=out)
    """, **SM_80)  # fmt: skip
    assert len(ran.of("cuCtxSetCurrent")) == 1, "the script's own"


def test_a_thread_without_a_context_encodes_descriptors(fake_cuda):
    """As those of torch's autograd are. The first thread loads the kernels, and leaves its own context alone."""
    ran = fake_cuda.run("""
        import threading
        A, B, out = operands([(256, 256, 256)])
        calls = [lambda: group_gemm(A, B, out=out), lambda: Plan(A, B, out=out), lambda: gg_runtime.explain(A, B)]
        def call(make):
            make()
            report("done")
        for make in calls * 2:
            thread = threading.Thread(target=call, args=(make,))
            thread.start()
            thread.join()
    """)  # fmt: skip
    assert ran.reported == ["done"] * 6
    assert {launch["symbol"] for launch in ran.launches} == {"hopper"}, "a kernel that reads descriptors"


def test_two_devices_share_one_load_and_have_a_function_each(fake_cuda):
    ran = fake_cuda.run("""
        for device in (0, 1, 0, 1):
            A, B, out = operands([(64, 64, 64)], device=device)
            group_gemm(A, B, out=out)
    """, **SM_80)  # fmt: skip
    assert [(launch["context"], launch["function_device"]) for launch in ran.launches] == [(0, 0), (1, 1)] * 2
    assert len(ran.of("cuLibraryLoadData")) == 1
    assert sorted(call["device"] for call in ran.of("cuDevicePrimaryCtxRetain")) == [0, 1]


def test_devices_of_unlike_architectures_take_their_own_kernels(fake_cuda):
    ran = fake_cuda.run("""
        for device in (0, 1):
            A, B, out = operands([(64, 64, 64)], pad=1, device=device)
            report(Plan(A, B, out=out).variant)
    """, FAKE_CUDA_SM="90,80")  # fmt: skip
    assert ["sm90" in ran.reported[0], "sm80" in ran.reported[1]] == [True, True], ran.reported


def test_two_threads_at_first_use_load_once(fake_cuda):
    ran = fake_cuda.run("""
        import threading
        together, errors = threading.Barrier(4), []
        def work():
            A, B, out = operands([(64, 64, 64)])
            together.wait()
            errors.append(failure(group_gemm, A, B, out=out)["type"])
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        report(errors)
    """, FAKE_CUDA_SLEEP_MS=100, **SM_80)  # fmt: skip
    assert ran.reported == [[None] * 4]
    assert len(ran.of("cuLibraryLoadData")) == 1
    assert len(ran.of("cuInit")) == 1
    assert len(ran.launches) == 4


def test_other_threads_run_while_a_kernel_is_loaded(fake_cuda):
    """The GIL is released: a thread that only looks at the clock is not held up for the second that a load takes."""
    ran = fake_cuda.run("""
        import threading, time
        A, B, out = operands([(64, 64, 64)])
        done, times = threading.Event(), [time.monotonic()]
        thread = threading.Thread(target=lambda: (group_gemm(A, B, out=out), done.set()))
        thread.start()
        while not done.is_set():
            time.sleep(0.01)
            times.append(time.monotonic())
        report([times[-1] - times[0], max(b - a for a, b in zip(times, times[1:]))])
    """, FAKE_CUDA_SLEEP_MS=1000, **SM_80)  # fmt: skip
    whole, longest_gap = ran.reported[0]
    assert whole >= 1
    assert longest_gap < 0.8


def test_loading_is_allowed_while_a_stream_is_captured(fake_cuda):
    """The thread's capture mode is relaxed around the load, and put back, also when the load fails."""
    ran = fake_cuda.run("""
        import ctypes
        cuda = ctypes.CDLL("libcuda.so.1")
        def capture_mode():
            mode = ctypes.c_int(0)
            cuda.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
            return mode.value
        A, B, out = operands([(64, 64, 64)])
        for _ in range(2):
            report(failure(group_gemm, A, B, out=out)["type"])
            report(capture_mode())
    """, FAKE_CUDA_FAIL="cuLibraryLoadData:2:1", **SM_80)  # fmt: skip
    assert ran.reported == ["CudaError", 0, None, 0]
    assert [load["relaxed"] for load in ran.of("cuLibraryLoadData")[1:]] == [True]


def test_nothing_waits_for_the_gpu(fake_cuda):
    ran = fake_cuda.run("""
        A, B, out = operands([(64, 64, 64)])
        group_gemm(A, B, out=out), Plan(A, B, out=out).run(), explain(A, B, out=out), gg_runtime.preload()
    """, **SM_80)  # fmt: skip
    assert ran.launches
    assert ran.of("cuStreamSynchronize") == []


@pytest.mark.parametrize(("sm", "kind"), [(80, "cubin"), (86, "cubin"), (90, "cubin"), (100, "ptx"), (121, "ptx")])
def test_the_image_that_is_loaded_is_the_one_that_the_gpu_can_run(fake_cuda, sm, kind):
    ran = fake_cuda.run("""
        A, B, out = operands([(64, 64, 64)], pad=1)
        group_gemm(A, B, out=out)
        seen = explain(A, B, out=out)
        report([seen.variant, seen.from_ptx, "PTX" in str(seen)])
    """, FAKE_CUDA_SM=sm, FAKE_CUDA_SHARED=101376)  # fmt: skip
    (load,) = ran.of("cuLibraryLoadData")
    ((variant, from_ptx, said),) = ran.reported
    assert load["kind"] == kind
    assert from_ptx == said == (kind == "ptx")
    assert ("sm90" in variant) == (sm == 90)


def test_preload_loads_what_the_gpus_can_take_and_the_first_call_loads_nothing(fake_cuda):
    ran = fake_cuda.run("""
        report(gg_runtime.preload(1))
        A, B, out = operands([(64, 64, 64)], device=1)
        group_gemm(A, B, out=out)
        report(gg_runtime.preload())
    """, FAKE_CUDA_SM="86,80")  # fmt: skip
    on_one, on_both = ran.reported
    assert on_one > 0 and on_one <= on_both <= 2 * on_one
    first_launch = ran.calls.index(ran.launches[0])
    assert sum(call["call"] == "cuLibraryLoadData" for call in ran.calls[:first_launch]) == on_one
    assert len(ran.of("cuLibraryLoadData")) == on_one, "the second device uses the same libraries"


@pytest.mark.parametrize("device", [-1, 64, 2**31, 2**64])
def test_preload_of_a_gpu_that_there_is_not(fake_cuda, device):
    (refused,) = fake_cuda.run(f"report(failure(gg_runtime.preload, {device}))", FAKE_CUDA_SM="90").reported
    assert refused["type"] == "ValueError" and ("asked for" in refused["text"] or "64 bits" in refused["text"])


def test_preload_passes_over_gpus_without_kernels_unless_one_is_asked_for(fake_cuda):
    ran = fake_cuda.run("""
        report(gg_runtime.preload() == gg_runtime.preload(0) > 0)
        report(failure(gg_runtime.preload, 1))
    """, FAKE_CUDA_SM="90,70")  # fmt: skip
    both, asked = ran.reported
    assert both and asked["type"] == "UnsupportedError"
    assert "sm_70" in asked["text"] and "ARCHS" not in asked["text"], "nothing can be built for it"


COMMAND_LINE = """
    import contextlib, io, runpy
    sys.modules["torch"] = None
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        try:
            runpy.run_module("gg_runtime", run_name="__main__")
        except SystemExit as end:
            status = end.code
    report([status, text.getvalue(), gg_runtime.__version__])
"""


def test_the_command_line_tells_devices_driver_and_verified_kernels(fake_cuda):
    status, text, version = fake_cuda.run(COMMAND_LINE).reported[0]
    assert status == 0
    for words in (f"gg_runtime {version}", "verified", "CUDA 12.8", "cuda:1 Fake GPU 1", "sm_90, from cubins"):
        assert words in text, text


def test_the_command_line_tells_which_gpus_need_the_ptx_and_which_have_no_kernel(fake_cuda):
    status, text, _ = fake_cuda.run(COMMAND_LINE, FAKE_CUDA_SM="75,121").reported[0]
    assert status == 0, "one of them can be used"
    unserved, served = text.splitlines()[-3:-1]
    assert "cuda:0" in unserved and "no embedded kernel runs on" in unserved and "sm_80, sm_90" in unserved
    assert "cuda:1" in served and "kernels of sm_80, from PTX" in served
    assert fake_cuda.run(COMMAND_LINE, FAKE_CUDA_SM=75).reported[0][0] == 1, "none of them can be used"


def test_preload_takes_the_ptx_only_where_no_cubin_fits(fake_cuda):
    ran = fake_cuda.run("report([gg_runtime.preload(0), gg_runtime.preload(1)])", FAKE_CUDA_SM="90,120")
    hopper, blackwell = ran.reported[0]
    kernels = [kernel["sm"] for kernel in gg_runtime.kernels()]
    assert (hopper, blackwell) == (kernels.count(90), kernels.count(80))
