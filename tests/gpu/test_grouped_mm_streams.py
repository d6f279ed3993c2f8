"""grouped_mm goes to the caller's current stream, in order; the host never waits, and nothing is made but an output."""

import sys

import pytest

torch = pytest.importorskip("torch")

import fresh_process  # noqa: E402
import gg_runtime  # noqa: E402
from gpu_busy import assert_no_call_waits, occupy  # noqa: E402
from ragged_cases import operands  # noqa: E402
from ragged_oracle import assert_exact, product  # noqa: E402
from threads import in_threads  # noqa: E402

SIZES = [40, 0, 61, 1, 300]
FORMS = {"KN": (128, 96, False), "NK": (128, 96, True), "odd": (75, 61, False)}

FIRST_USE_IN_THREADS = """
import torch, gg_runtime
from threads import in_threads

seeds = range(8)
A = [torch.randint(-2, 3, (60, 72), device="cuda").bfloat16() for seed in seeds]
B = [torch.randint(-2, 3, (2, 72, 64 if seed % 2 else 57), device="cuda").bfloat16() for seed in seeds]
offs = [torch.tensor([seed, 60], dtype=torch.int32, device="cuda") for seed in seeds]
expected = [torch.cat([A[seed][:seed] @ B[seed][0], A[seed][seed:] @ B[seed][1]]) for seed in seeds]
streams = [torch.cuda.Stream() for seed in seeds]
torch.cuda.synchronize()

def work(seed):
    with torch.cuda.stream(streams[seed]):
        assert torch.equal(gg_runtime.grouped_mm(A[seed], B[seed], offs=offs[seed]), expected[seed]), seed

in_threads(work)
"""


def forms():
    return pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)


@forms()
@pytest.mark.parametrize("late", ["A", "B", "offs"])
def test_a_side_stream_orders_the_launch_after_its_own_work(late, form):
    n, k, transposed = form
    A, B, offs, out = operands(SIZES, n, k, transposed=transposed)
    array = {"A": A, "B": B, "offs": offs}[late]
    value = array.clone()
    array.fill_(-1 if late == "offs" else float("nan"))
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        occupy(100_000_000)
        array.copy_(value)
        gg_runtime.grouped_mm(A, B, offs=offs, out=out)
    stream.synchronize()
    assert_exact(out, A, B, offs)


@forms()
def test_two_streams_at_once(form):
    n, k, transposed = form
    calls = [operands([size + i for size in SIZES], n, k, transposed=transposed) for i in range(2)]
    streams = [torch.cuda.Stream() for _ in calls]
    torch.cuda.synchronize()
    for _ in range(20):
        for stream, (A, B, offs, out) in zip(streams, calls):
            with torch.cuda.stream(stream):
                gg_runtime.grouped_mm(A, B, offs=offs, out=out)
    torch.cuda.synchronize()
    for A, B, offs, out in calls:
        assert_exact(out, A, B, offs)


def test_it_does_not_wait_for_another_stream():
    A, B, offs, out = operands(SIZES, 128, 96)
    gg_runtime.grouped_mm(A, B, offs=offs, out=out)
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(first):
        waiting = occupy()
    with torch.cuda.stream(second):
        gg_runtime.grouped_mm(A, B, offs=offs, out=out)
    second.synchronize()
    assert not waiting.query(), "the call went to a stream that was busy"


@forms()
def test_the_host_does_not_wait(form):
    n, k, transposed = form
    A, B, offs, out = operands(SIZES, n, k, transposed=transposed)
    bias = torch.zeros(len(SIZES), n, device="cuda", dtype=A.dtype)
    calls = {
        "grouped_mm": lambda: gg_runtime.grouped_mm(A, B, offs=offs),
        "grouped_mm(out=)": lambda: gg_runtime.grouped_mm(A, B, offs=offs, out=out),
        "grouped_mm(bias=)": lambda: gg_runtime.grouped_mm(A, B, offs=offs, bias=bias),
        "grouped_mm(batch_invariant=)": lambda: gg_runtime.grouped_mm(A, B, offs=offs, batch_invariant=True),
        "explain": lambda: gg_runtime.explain(A, B, offs=offs),
    }
    assert_no_call_waits(calls)
    assert_exact(out, A, B, offs)


def device_allocations() -> int:
    """So far, freed ones included."""
    return torch.cuda.memory_stats()["allocation.all.allocated"]


@forms()
@pytest.mark.parametrize("given", [True, False], ids=["out=", "new"])
def test_nothing_is_allocated_but_a_new_output(given, form):
    n, k, transposed = form
    A, B, offs, out = operands(SIZES, n, k, transposed=transposed)

    def call():
        gg_runtime.grouped_mm(A, B, offs=offs, out=out if given else None)

    call()
    before = device_allocations()
    for _ in range(10):
        call()
    assert device_allocations() == before + (0 if given else 10)


def test_no_reference_is_kept():
    A, B, offs, out = arrays = operands(SIZES, 128, 96)
    before = [sys.getrefcount(array) for array in arrays]
    for _ in range(100):
        gg_runtime.grouped_mm(A, B, offs=offs, out=out)
        gg_runtime.grouped_mm(A, B, offs=offs)
    assert [sys.getrefcount(array) for array in arrays] == before


def test_inputs_may_be_freed_and_reused_once_the_call_is_back():
    A, B, offs, _ = operands(SIZES, 128, 96)
    expected = product(A, B, offs)
    torch.cuda.synchronize()
    occupy(100_000_000)
    C = gg_runtime.grouped_mm(A, B, offs=offs)
    shapes = [A.shape, B.shape, offs.shape]
    del A, B, offs  # the allocator may hand their memory to what comes next on this stream
    dirt = [torch.full(shape, -1, device="cuda", dtype=torch.bfloat16) for shape in shapes for _ in range(50)]
    torch.cuda.synchronize()
    assert torch.equal(C, expected) and len(dirt) == 150


def test_first_use_in_eight_threads_at_once():
    fresh_process.run(FIRST_USE_IN_THREADS)


def test_steady_use_in_eight_threads():
    def work(seed):
        with torch.cuda.stream(torch.cuda.Stream()):
            calls = [operands([seed, 30, 0, 5 * seed], n, k, transposed=t) for n, k, t in FORMS.values()]
            expected = [product(A, B, offs) for A, B, offs, _ in calls]
            for _ in range(50):
                for (A, B, offs, out), right in zip(calls, expected):
                    assert torch.equal(gg_runtime.grouped_mm(A, B, offs=offs, out=out), right)

    in_threads(work)
