"""The list that a Plan keeps on the device: its runs wait for the upload, and its memory waits for the runs."""

import pytest

from faults.fake_driver import assert_says

SM_80 = {"FAKE_CUDA_SM": 80}  # `basic` takes 32 groups by value, so that 33 are uploaded

SCENE = """
import ctypes, gc, weakref
import torch
driver = ctypes.CDLL("libcuda.so.1")
driver.fake_begin_capture.argtypes = driver.fake_replay.argtypes = [ctypes.c_size_t, ctypes.c_int]
driver.fake_end_capture.argtypes = [ctypes.c_size_t]
MADE_ON, OTHER, GRAPH = 0x200, 0x300, 7

def note(text):
    driver.fake_note(b'{"call": "note", "text": "%s"}' % text.encode())

def on(stream):
    torch.cuda.streams[0] = stream

def finish(done):
    driver.fake_events_are_ready(int(done))

def list_of(groups):
    return operands([(16, 16, 16)] * groups, kind=torch.Tensor)

def make(groups=33):
    A, B, out = list_of(groups)
    plan = Plan(A, B, out=out)
    note("made")
    return plan

torch.freed = []
allocate = torch.Tensor.new_empty_strided
def new_empty_strided(self, *arguments, **options):
    made = allocate(self, *arguments, **options)
    weakref.finalize(made, lambda address=made.address: torch.freed.append(address))
    return made
torch.Tensor.new_empty_strided = new_empty_strided
"""


def calls_after_made(ran) -> list[tuple]:
    """Waits, records and launches that follow the note "made", in order."""
    names = [entry["call"] for entry in ran.calls]
    after = ran.calls[names.index("note") + 1 :]
    kept = ("cuStreamWaitEvent", "cuEventRecord", "cuLaunchKernelEx", "cuGraphRetainUserObject")
    return [(e["call"], e.get("stream"), e.get("flags")) for e in after if e["call"] in kept]


def launched(stream):
    return ("cuLaunchKernelEx", stream, None)


def waited(stream, external=0):
    return ("cuStreamWaitEvent", stream, external)


def recorded(stream):
    return ("cuEventRecord", stream, 0)


def test_a_list_in_parameters_needs_neither_events_nor_waits(fake_cuda):
    ran = fake_cuda.run(SCENE + "plan = make(32); on(OTHER); plan.run()", **SM_80)
    assert calls_after_made(ran) == [launched(0x300)]
    assert not ran.of("cuEventCreate")


def test_runs_on_the_stream_of_the_upload_need_no_wait(fake_cuda):
    ran = fake_cuda.run(SCENE + "finish(False); plan = make(); plan.run(); plan.run()", **SM_80)
    assert calls_after_made(ran) == [launched(0x200)] * 2
    uploads = [e["call"] for e in ran.calls if e["call"] in ("cuLaunchKernelEx", "cuEventRecord", "note")]
    assert uploads[uploads.index("note") - 1] == "cuEventRecord", "the event lies behind the upload"


def test_a_run_on_another_stream_waits_until_the_upload_is_known_to_be_done(fake_cuda):
    script = "finish(False); plan = make(); on(OTHER); plan.run(); finish(True); plan.run(); finish(False); plan.run()"
    ran = fake_cuda.run(SCENE + script, **SM_80)
    run = [launched(0x300), recorded(0x300)]
    assert calls_after_made(ran) == [waited(0x300), *run, *run, *run]


def test_a_stream_that_took_over_the_handle_waits_too(fake_cuda):
    ran = fake_cuda.run(SCENE + "finish(False); plan = make(); driver.fake_renew_stream(MADE_ON); plan.run()", **SM_80)
    assert calls_after_made(ran) == [waited(0x200), launched(0x200), recorded(0x200)]


@pytest.mark.parametrize("done", [False, True])
def test_a_captured_run_waits_in_every_replay_unless_the_upload_is_done(fake_cuda, done):
    script = f"""
finish(False); plan = make(); finish({done})
driver.fake_begin_capture(MADE_ON, GRAPH); plan.run(); report(driver.fake_end_capture(MADE_ON))
"""
    ran = fake_cuda.run(SCENE + script, **SM_80)
    assert ran.reported == [0], "the capture is whole"
    retained = ("cuGraphRetainUserObject", None, None)
    assert calls_after_made(ran) == [*([] if done else [waited(0x200, 1)]), retained, launched(0x200)]


MADE_IN_CAPTURE = """
driver.fake_begin_capture(MADE_ON, GRAPH)
plan = make()
plan.run()
report(driver.fake_end_capture(MADE_ON))
"""


def test_a_plan_of_a_capture_runs_once_the_graph_was_replayed(fake_cuda):
    script = """
report(failure(plan.run))
on(OTHER); report(failure(plan.run))
driver.fake_replay(MADE_ON, GRAPH); finish(False)
report(failure(plan.run))
finish(True)
report(failure(plan.run))
"""
    ran = fake_cuda.run(SCENE + MADE_IN_CAPTURE + script, **SM_80)
    status, own, other, pending, done = ran.reported
    assert status == 0
    for error in (own, other):
        assert_says(error, "RuntimeError", "captured", "replay the graph first", "make the Plan before the capture")
    assert pending["type"] is None and done["type"] is None
    first, *later = calls_after_made(ran)
    assert first == launched(0x200)
    run = [launched(0x300), recorded(0x300)]
    assert later == [waited(0x300), *run, *run]


def test_a_plan_of_a_capture_does_not_run_in_another_before_a_replay(fake_cuda):
    script = """
driver.fake_begin_capture(OTHER, 8); on(OTHER)
report(failure(plan.run))
report(driver.fake_end_capture(OTHER))
"""
    ran = fake_cuda.run(SCENE + MADE_IN_CAPTURE + script, **SM_80)
    assert_says(ran.reported[1], "RuntimeError", "has not happened yet")
    assert ran.reported[2] == 0, "the other capture goes on"


def test_a_branch_of_the_same_capture_joins_behind_the_upload(fake_cuda):
    script = """
driver.fake_begin_capture(MADE_ON, GRAPH)
plan = make()
driver.fake_begin_capture(OTHER, GRAPH)
on(OTHER); plan.run()
report(driver.fake_end_capture(MADE_ON))
"""
    ran = fake_cuda.run(SCENE + script, **SM_80)
    assert ran.reported == [0]
    assert calls_after_made(ran) == [waited(0x300), ("cuGraphRetainUserObject", None, None), launched(0x300)]


def test_a_branch_of_the_same_capture_keeps_the_list_of_a_plan_that_is_gone(fake_cuda):
    script = """
driver.fake_begin_capture(MADE_ON, GRAPH)
plan = make()
driver.fake_begin_capture(OTHER, GRAPH)
on(OTHER); plan.run()
del plan; gc.collect()
report(len(torch.freed))
driver.fake_end_capture(MADE_ON); driver.fake_destroy_graph(GRAPH)
on(MADE_ON); make(1)
report(len(torch.freed))
"""
    ran = fake_cuda.run(SCENE + script, **SM_80)
    assert ran.reported == [0, 1], "its own stream, which a pool would give it to, does not wait for the branch"


def test_memory_goes_back_at_once_where_only_its_own_stream_used_it(fake_cuda):
    ran = fake_cuda.run(SCENE + "finish(False); plan = make(); plan.run(); del plan; report(len(torch.freed))", **SM_80)
    assert ran.reported == [1]


def test_memory_waits_for_runs_on_other_streams(fake_cuda):
    script = """
finish(True); plan = make(); on(OTHER); finish(False); plan.run(); del plan
report(len(torch.freed))
on(MADE_ON); other = make(); report(len(torch.freed))
finish(True); del other; report(len(torch.freed))
"""
    ran = fake_cuda.run(SCENE + script, **SM_80)
    assert ran.reported == [0, 0, 2]


def test_a_graph_keeps_the_list_of_a_plan_that_is_gone(fake_cuda):
    script = """
plan = make()
driver.fake_begin_capture(MADE_ON, GRAPH); plan.run(); driver.fake_end_capture(MADE_ON)
del plan
report(len(torch.freed))
driver.fake_destroy_graph(GRAPH)
report(len(torch.freed))
del make(1).out
gc.collect()
report(len(torch.freed))
"""
    ran = fake_cuda.run(SCENE + script, **SM_80)
    assert ran.reported == [0, 0, 1], "freed by the next Plan, on a thread that may"


def test_any_call_frees_what_a_graph_let_go_of(fake_cuda):
    script = """
plan = make()
driver.fake_begin_capture(MADE_ON, GRAPH); plan.run(); driver.fake_end_capture(MADE_ON)
del plan
driver.fake_destroy_graph(GRAPH)
A, B, out = list_of(1)
report(len(torch.freed))
group_gemm(A, B, out=out)
report(len(torch.freed))
"""
    ran = fake_cuda.run(SCENE + script, **SM_80)
    assert ran.reported == [0, 1]


@pytest.mark.parametrize("function", ["cuStreamWaitEvent", "cuEventRecord"])
def test_a_run_holds_no_gil_while_its_stream_is_full(fake_cuda, function):
    """The stream may be full behind a host function, which needs it."""
    script = "finish(False); plan = make(); on(OTHER); report(ticks_during(plan.run))"
    ran = fake_cuda.run(SCENE + script, **SM_80, FAKE_CUDA_SLOW=f"{function}:1000")
    assert ran.reported[0] > 10


def test_making_a_plan_holds_no_gil_while_its_stream_is_full(fake_cuda):
    ran = fake_cuda.run(SCENE + "report(ticks_during(make))", **SM_80, FAKE_CUDA_SLOW="cuEventRecord:1000")
    assert ran.reported[0] > 10


@pytest.mark.parametrize(
    "captured",
    [
        "group_gemm(A, B, out=out)",
        "Plan(A, B, out=out).run()",
        "Plan(A, B, out=out)",
        "driver.fake_fail_launch(2); failure(group_gemm, A, B, out=out)",  # the kernel behind the upload
        "driver.fake_fail_launch(1); failure(group_gemm, A, B, out=out)",  # the upload
    ],
)
def test_a_graph_keeps_a_captured_calls_list_where_the_framework_has_no_pool_for_it(fake_cuda, captured):
    script = f"""
import cupy
kept = []
allocate = cupy.empty
def empty(*arguments):
    made = allocate(*arguments)
    kept.append(weakref.ref(made))
    return made
def freed():
    gc.collect()
    return sum(one() is None for one in kept)
A, B, out = ([cupy.empty((16, 16), "float16") for _ in range(33)] for _ in "ABC")
cupy.empty, cupy.cuda.streams[0] = empty, MADE_ON
driver.fake_begin_capture(MADE_ON, GRAPH); {captured}; driver.fake_end_capture(MADE_ON)
report([len(kept), freed()])
driver.fake_destroy_graph(GRAPH)
group_gemm(A, B, out=out)
report(freed())
"""
    ran = fake_cuda.run(SCENE + script, **SM_80)
    assert ran.reported == [[1, 0], 2], "the captured call's list goes with the graph, the next call's at once"


def test_a_graph_keeps_the_list_of_a_plan_that_was_never_made(fake_cuda):
    """Of a list in two parts, where there is no memory for the second: the upload of the first is captured by then."""
    script = """
import cupy
def array(rows, columns):
    return cupy.empty((rows, columns), "float16")
A = [array(1024, 1024) for _ in range(40)] + [array(64, 63) for _ in range(60)]
B = [array(1024, 1024) for _ in range(40)] + [array(63, 64) for _ in range(60)]
out = [array(1024, 1024) for _ in range(40)] + [array(64, 64) for _ in range(60)]
group_gemm(A, B, out=out)
report(Plan(A, B, out=out).launches)
kept = []
allocate = cupy.empty
def empty(shape, dtype, *order):
    if kept:
        raise MemoryError("no more")
    made = allocate(shape, dtype, *order)
    kept.append(weakref.ref(made))
    return made
cupy.empty, cupy.cuda.streams[0] = empty, MADE_ON
driver.fake_begin_capture(MADE_ON, GRAPH); report(failure(Plan, A, B, out=out)); driver.fake_end_capture(MADE_ON)
gc.collect()
report(kept[0]() is None)
cupy.empty = allocate
driver.fake_destroy_graph(GRAPH)
group_gemm(A, B, out=out)
report(kept[0]() is None)
"""
    launches, error, freed, freed_with_graph = fake_cuda.run(SCENE + script).reported
    assert launches == 2
    assert_says(error, "MemoryError", "no more")
    assert (freed, freed_with_graph) == (False, True)


def test_no_event_of_a_graph_is_destroyed_before_it(fake_cuda):
    script = """
finish(False)
plan = make()
driver.fake_begin_capture(MADE_ON, GRAPH); plan.run(); driver.fake_end_capture(MADE_ON)
driver.fake_begin_capture(MADE_ON, 8); inner = make(); inner.run(); driver.fake_end_capture(MADE_ON)
note("dropped"); finish(True)
del plan, inner
note("destroyed")
driver.fake_destroy_graph(GRAPH); driver.fake_destroy_graph(8)
make(1)
"""
    ran = fake_cuda.run(SCENE + script, **SM_80)
    used = {e["event"] for e in ran.calls if e["call"] in ("cuStreamWaitEvent", "cuEventRecord") and e["flags"]}
    texts = [e.get("text", e["call"]) for e in ran.calls]
    destroyed = {e["event"]: at for at, e in enumerate(ran.calls) if e["call"] == "cuEventDestroy"}
    assert len(used) == 2 and used <= destroyed.keys()
    assert all(destroyed[event] > texts.index("destroyed") for event in used)


def test_the_scratch_of_tma_waits_for_runs_on_other_streams(fake_cuda):
    script = """
import embedded
name = next(name for name in embedded.KERNELS if name.startswith("tma_sm90_fp16_nn"))
A, B, out = list_of(4)
plan = Plan(A, B, out=out, variant=name); note("made")
on(OTHER); finish(False); plan.run(); del plan
report(len(torch.freed))
finish(True); make(1); report(len(torch.freed))
"""
    ran = fake_cuda.run(SCENE + script)
    assert ran.reported == [0, 1]
    run = [waited(0x300), launched(0x300), recorded(0x300)]
    assert calls_after_made(ran)[:3] == run, "earlier work on the Plan's stream may still use the memory"


DIVIDED = """
A, B, out = operands([(512, 512, 512)] * 63 + [(512, 7, 512)], kind=torch.Tensor)
finish(False); plan = Plan(A, B, out=out); note("made"); report([plan.launches, plan.by_value])
on(OTHER)
"""


def test_a_plan_of_two_launches_waits_once_and_is_recorded_once(fake_cuda):
    ran = fake_cuda.run(SCENE + DIVIDED + "plan.run()")
    assert ran.reported == [[2, False]]
    assert calls_after_made(ran) == [waited(0x300), launched(0x300), launched(0x300), recorded(0x300)]


def test_a_run_whose_second_launch_fails_is_recorded_as_well(fake_cuda):
    script = """
driver.fake_fail_launch(2)
report(failure(plan.run)); del plan
report(len(torch.freed))
finish(True); make(1); report(len(torch.freed))
"""
    ran = fake_cuda.run(SCENE + DIVIDED + script)
    _, error, while_it_runs, after = ran.reported
    assert_says(error, "CudaError", "cuLaunchKernelEx")
    assert calls_after_made(ran)[:3] == [waited(0x300), launched(0x300), recorded(0x300)]
    assert while_it_runs == 0 and after > 0, "the first launch reads its list until it is done"


def test_a_stream_that_nobody_could_wait_for_is_given_nothing(fake_cuda):
    """The event that tells when a run is done is made before the run."""
    script = """
finish(False); plan = make(); on(OTHER)
driver.fake_fail_event(1)
report(failure(plan.run)); report(failure(plan.run))
"""
    ran = fake_cuda.run(SCENE + script, **SM_80)
    assert_says(ran.reported[0], "CudaError", "cuEventCreate", "CUDA_ERROR_OUT_OF_MEMORY")
    assert ran.reported[1]["type"] is None
    assert calls_after_made(ran) == [waited(0x300), waited(0x300), launched(0x300), recorded(0x300)]


@pytest.mark.parametrize("function", ["cuEventCreate", "cuEventRecord", "cuStreamGetId", "cuStreamGetCaptureInfo_v2"])
def test_a_driver_error_is_told_and_the_next_plan_works(fake_cuda, function):
    script = "report(failure(make)); report(failure(make))"
    ran = fake_cuda.run(SCENE + script, **SM_80, FAKE_CUDA_FAIL=f"{function}:2:1")
    assert_says(ran.reported[0], "CudaError", function.removesuffix("_v2"), "CUDA_ERROR_OUT_OF_MEMORY")
    assert ran.reported[1]["type"] is None


def test_a_checked_plan_notices_memory_that_moved(fake_cuda):
    script = """
A, B, out = list_of(2)
checked, plan = Plan(A, B, out=out, checked=True), Plan(A, B, out=out)
report(failure(checked.run))
B[1].address += 256
report(failure(checked.run))
report(failure(plan.run))
B[1].address -= 256
out[0].shape = (0, 16)
report(failure(checked.run))
"""
    ran = fake_cuda.run(SCENE + script, **SM_80)
    fine, moved, unchecked, resized = ran.reported
    assert fine["type"] is None and unchecked["type"] is None
    assert_says(moved, "RuntimeError", "Plan: B[1] has other memory", "make a new Plan")
    assert_says(resized, "RuntimeError", "Plan: out[0] has other memory, another shape")


def test_a_stream_of_a_foreign_context_is_named(fake_cuda):
    script = """
driver.fake_set_stream_context.argtypes = [ctypes.c_size_t, ctypes.c_int]
A, B, out = list_of(2)
driver.fake_set_stream_context(MADE_ON, 8)
report(failure(group_gemm, A, B, out=out))
report(failure(group_gemm, A, B, out=out))
"""
    ran = fake_cuda.run(SCENE + script, **SM_80, FAKE_CUDA_FAIL="cuLaunchKernelEx:400:1")
    assert_says(ran.reported[0], "CudaError", "another CUDA context than the primary one of cuda:0", "make a stream")
    assert ran.reported[1]["type"] is None
