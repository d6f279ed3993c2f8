"""Processes that fork, end, are interrupted, or lose threads while work is under way."""

import pytest

from faults.fake_driver import SM_80, assert_says

IN_A_CHILD = """
    import os
    def in_child(work):
        child = os.fork()
        if child == 0:
            work()
            sys.stdout.flush()
            os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""


def test_a_child_that_was_forked_after_use_is_told_so_by_every_entry_point(fake_cuda):
    """Plans that the parent made too: nothing hangs, nothing reaches the driver, and the parent goes on."""
    ran = fake_cuda.run(IN_A_CHILD + """
    A, B, out = operands([(64, 64, 64)])
    mat_a, mat_b, offs = ragged(64, 64, 64, 3)
    plan = Plan(A, B, out=out)
    plan.run()
    calls = [lambda: group_gemm(A, B, out=out), plan.run, lambda: Plan(A, B, out=out), gg_runtime.preload,
             lambda: grouped_mm(mat_a, mat_b, offs=offs, out=matrix(64, 64))]
    status = in_child(lambda: [report(failure(call)) for call in calls for _ in range(2)])
    report([status, plan.run() == out])
    """, **SM_80)  # fmt: skip
    *in_child, in_parent = ran.reported
    assert len(in_child) == 10
    for error in in_child:
        assert_says(error, "UnsupportedError", "before this process was forked", "spawn", "forkserver")
    assert in_parent == [0, True]
    assert len(ran.launches) == 2


def test_a_child_that_was_forked_while_a_thread_loaded_does_not_hang(fake_cuda):
    """Locks that the thread held at the fork stay locked in the child."""
    ran = fake_cuda.run(IN_A_CHILD + """
    import signal, threading, time
    A, B, out = operands([(64, 64, 64)])
    thread = threading.Thread(target=lambda: group_gemm(A, B, out=out))
    thread.start()
    time.sleep(0.3)
    def work():
        signal.alarm(20)
        report(failure(group_gemm, A, B, out=out))
    report(in_child(work))
    thread.join()
    report(group_gemm(A, B, out=out) == out)
    """, FAKE_CUDA_SLEEP_MS=1500, **SM_80)  # fmt: skip
    in_child, status, in_parent = ran.reported
    assert_says(in_child, "UnsupportedError", "fork", "spawn")
    assert (status, in_parent, len(ran.launches)) == (0, True, 2)


def test_workers_that_are_forked_before_the_first_use_each_start_their_own(fake_cuda):
    ran = fake_cuda.run("""
        import multiprocessing
        def work(_):
            A, B, out = operands([(64, 64, 64)])
            return group_gemm(A, B, out=out) == out
        with multiprocessing.get_context("fork").Pool(4) as pool:
            report(pool.map(work, range(8)))
        A, B, out = operands([(64, 64, 64)])
        report(group_gemm(A, B, out=out) == out)
    """, **SM_80)  # fmt: skip
    assert ran.reported == [[True] * 8, True]
    assert len(ran.launches) == 9


def test_a_spawned_worker_of_a_process_that_used_the_gpu_works(fake_cuda):
    ran = fake_cuda.run("""
        import subprocess
        A, B, out = operands([(64, 64, 64)])
        group_gemm(A, B, out=out)
        use = "A, B, out = operands([(64, 64, 64)]); report(group_gemm(A, B, out=out) == out)"
        script = "from faults.child_prelude import *; " + use
        sys.exit(subprocess.run([sys.executable, "-c", script]).returncode)
    """, **SM_80)  # fmt: skip
    assert ran.reported == [True]
    assert len(ran.launches) == 2


WORK_IN_FLIGHT = """
    import atexit, threading, cupy
    A, B, out = operands([(64, 64, 64)])
    plan = Plan(A, B, out=out)
    uploaded = Plan(*[[cupy.empty((16, 16), "float16") for _ in range(40)] for _ in "AB"])
    plan.run(), uploaded.run()
    mat_a, mat_b, offs = ragged(64, 64, 64, 3)
    grouped_mm(mat_a, mat_b, offs=offs, out=matrix(64, 64))
    class Cycle:
        def __init__(self):
            self.itself, self.plan = self, Plan(A, B, out=out)
    cycle = Cycle()
"""


@pytest.mark.parametrize(
    "end",
    [
        "",
        "sys.exit(0)",
        "atexit.register(lambda: (plan.run(), uploaded.run(), report('ran at exit')))",
        "atexit.register(lambda: Plan(A, B, out=out).run())",
        "sys.modules.clear()",
        "del plan, uploaded, cycle",
    ],
    ids=["at once", "sys.exit", "atexit", "a plan at exit", "modules gone", "plans gone"],
)
def test_a_process_ends_with_work_in_flight(fake_cuda, end):
    """Exit status 0, and no call of the driver once it has shut down, which C++ destructors would come after."""
    ran = fake_cuda.run(WORK_IN_FLIGHT + "    " + end + "\n", **SM_80)
    assert not [call for call in ran.calls if "after_exit" in call]
    assert ran.reported == (["ran at exit"] if "ran at exit" in end else [])


@pytest.mark.parametrize(
    "call",
    ["plan.run()", "group_gemm(A, B, out=out)", "grouped_mm(mat_a, mat_b, offs=offs, out=rows)", "waiting.run()"],
)
def test_a_process_ends_while_daemon_threads_launch(fake_cuda, call):
    """Python ends them where they take the GIL back. By pybind11's own release of it, that aborts the process."""
    fake_cuda.run(f"""
        import threading, time
        A, B, out = operands([(64, 64, 64)])
        mat_a, mat_b, offs = ragged(64, 64, 64, 3)
        rows = matrix(64, 64)
        plan = Plan(A, B, out=out)
        waiting = Plan(*operands([(64, 64, 64)], kind=CapsuleArray)[:2], out=[matrix(64, 64)])
        def work():
            while True:
                {call}
        for _ in range(3):
            threading.Thread(target=work, daemon=True).start()
        time.sleep(0.2)
    """, FAKE_CUDA_SLOW="cuLaunchKernelEx:1", **SM_80)  # fmt: skip


def test_a_call_after_the_driver_shut_down_would_be_seen(fake_cuda):
    """The recorder's own test: a handler of exit() that was registered before cuInit's runs after it."""
    ran = fake_cuda.run("""
        import ctypes
        late = ctypes.CFUNCTYPE(None)(lambda: cuda.cuCtxSetCurrent(None))
        ctypes.CDLL(None).__cxa_atexit  # glibc's; a plain atexit is no exported symbol
        cuda = ctypes.CDLL("libcuda.so.1")
        free_standing = ctypes.cast(cuda.cuCtxSetCurrent, ctypes.c_void_p)
        ctypes.CDLL(None).__cxa_atexit(free_standing, None, None)
        A, B, out = operands([(64, 64, 64)])
        group_gemm(A, B, out=out)
    """, **SM_80)  # fmt: skip
    assert [call["call"] for call in ran.calls if "after_exit" in call] == ["cuCtxSetCurrent"]


def test_an_interrupt_while_a_call_waits_for_the_gpu_comes_when_it_is_done(fake_cuda):
    """As JAX's arrays do: the call waits by cuStreamSynchronize, without the GIL."""
    ran = fake_cuda.run("""
        import os, signal, threading, time
        A, B, out = operands([(64, 64, 64)], kind=CapsuleArray)
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        start = time.monotonic()
        try:
            group_gemm(A, B, out=out)
            time.sleep(60)
        except KeyboardInterrupt:
            report([time.monotonic() - start])
        report(group_gemm(A, B, out=out) == out)
    """, FAKE_CUDA_SLOW="cuStreamSynchronize:1000", **SM_80)  # fmt: skip
    (waited,), again = ran.reported
    assert 1 <= waited < 30, "neither in the middle of it, nor lost"
    assert again is True
    assert len(ran.of("cuStreamSynchronize")) == len(ran.launches) == 2


def test_other_threads_run_while_a_call_waits_for_the_gpu(fake_cuda):
    ran = fake_cuda.run("""
        A, B, out = operands([(64, 64, 64)], kind=CapsuleArray)
        group_gemm(A, B, out=out)
        report(ticks_during(lambda: group_gemm(A, B, out=out)))
    """, FAKE_CUDA_SLOW="cuStreamSynchronize:1000", **SM_80)  # fmt: skip
    assert ran.reported[0] > 10


def test_threads_that_end_with_pending_work_leave_it_to_others(fake_cuda):
    """What a thread loaded, planned and remembered outlives it or goes with it; 200 of them, one after the other."""
    ran = fake_cuda.run("""
        import threading
        plans = []
        def work():
            A, B, out = operands([(64, 64, 64)])
            plans.append(Plan(A, B, out=out))
            plans[-1].run()
            group_gemm(A, B, out=out)
            mat_a, mat_b, offs = ragged(64, 64, 64, 3)
            grouped_mm(mat_a, mat_b, offs=offs, out=matrix(64, 64))
        for _ in range(200):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        for plan in plans:
            plan.run()
        report(len(plans))
    """, **SM_80)  # fmt: skip
    assert ran.reported == [200]
    assert len(ran.launches) == 200 * 4
    assert len(ran.of("cuLibraryLoadData")) == 2 and len(ran.of("cuInit")) == 1
