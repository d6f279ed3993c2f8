"""Work goes to the caller's current stream, in order, and the host never waits for it."""

import pytest

torch = pytest.importorskip("torch")

import gg_runtime  # noqa: E402
from cases import row_major  # noqa: E402
from gpu_busy import assert_no_call_waits, host_must_not_wait, occupy  # noqa: E402
from oracle import assert_exact  # noqa: E402

SHAPES = {"by value": [(64, 96, 128)] * 4, "packed": [(33, 40, 56)] * 64, "odd": [(33, 41, 57)] * 3}


def lists():
    return pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES.keys())


@lists()
@pytest.mark.parametrize("call", ["group_gemm", "Plan"])
def test_a_side_stream_orders_the_launch_after_its_own_work(shapes, call):
    A, B = row_major(shapes)
    values = [a.clone() for a in A]
    for a in A:
        a.fill_(float("nan"))
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        occupy(100_000_000)
        for a, value in zip(A, values):
            a.copy_(value)
        C = gg_runtime.group_gemm(A, B) if call == "group_gemm" else gg_runtime.Plan(A, B).run()
    stream.synchronize()
    assert_exact(C, A, B)


def test_an_event_orders_the_launch_after_another_stream():
    A, B = row_major(SHAPES["by value"])
    values = [a.clone() for a in A]
    for a in A:
        a.fill_(float("nan"))
    torch.cuda.synchronize()
    producer, consumer = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(producer):
        occupy(100_000_000)
        for a, value in zip(A, values):
            a.copy_(value)
        ready = producer.record_event()
    with torch.cuda.stream(consumer):
        consumer.wait_event(ready)
        C = gg_runtime.group_gemm(A, B)
    consumer.synchronize()
    assert_exact(C, A, B)


def test_a_plan_runs_on_the_stream_that_is_current_then():
    A, B = row_major(SHAPES["by value"])
    plan = gg_runtime.Plan(A, B)
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(first):
        waiting = occupy()
    with torch.cuda.stream(second):
        plan.run()
    second.synchronize()
    assert not waiting.query(), "the plan ran on a stream that was busy"
    assert_exact(plan.out, A, B)


@lists()
def test_the_host_does_not_wait(shapes):
    A, B = row_major(shapes)
    out = [torch.empty(m, n, device="cuda", dtype=torch.float16) for m, n, _ in shapes]
    calls = {
        "group_gemm": lambda: gg_runtime.group_gemm(A, B),
        "group_gemm(out=)": lambda: gg_runtime.group_gemm(A, B, out=out),
        "Plan": lambda: gg_runtime.Plan(A, B, out=out),
        "Plan.run": gg_runtime.Plan(A, B, out=out).run,
        "explain": lambda: gg_runtime.explain(A, B, out=out),
    }
    assert_no_call_waits(calls)
    assert_exact(out, A, B)


def test_inputs_may_be_freed_and_reused_once_the_call_is_back():
    A, B = row_major([(256, 256, 256)] * 64)
    expected = [(a.float() @ b.float()).half() for a, b in zip(A, B)]
    torch.cuda.synchronize()
    occupy(100_000_000)
    C = gg_runtime.group_gemm(A, B)
    del A, B  # the allocator may hand their memory, and the packed list's, to what comes next on this stream
    dirt = [torch.full((256, 256), float("nan"), device="cuda", dtype=torch.float16) for _ in range(256)]
    torch.cuda.synchronize()
    assert all(torch.equal(c, e) for c, e in zip(C, expected)) and len(dirt) == 256


def test_the_detector_sees_a_call_that_waits():
    x = torch.ones(1, device="cuda")
    with pytest.raises(AssertionError, match="waited"), host_must_not_wait():
        x.item()
