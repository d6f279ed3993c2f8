"""A launch goes to the tensors' device, whatever the current one is."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import gg_runtime  # noqa: E402
from threads import in_threads  # noqa: E402

SIZES = {"by value": [(64, 128, 96), (33, 57, 41)], "packed": [(24, 40, 56)] * 64}


def make(device, shapes):
    A = [torch.randint(-2, 3, (m, k), device=device).half() for m, n, k in shapes]
    B = [torch.randint(-2, 3, (k, n), device=device).half() for m, n, k in shapes]
    return A, B, [a @ b for a, b in zip(A, B)]


def right(C, expected) -> bool:
    return all(c.device == e.device and torch.equal(c, e) for c, e in zip(C, expected))


def lists():
    return pytest.mark.parametrize("shapes", SIZES.values(), ids=SIZES.keys())


@lists()
@pytest.mark.parametrize("current", [0, 1])
@pytest.mark.parametrize("device", [0, 1])
def test_tensors_choose_the_device(device, current, shapes):
    A, B, expected = make(f"cuda:{device}", shapes)
    with torch.cuda.device(current):
        plan = gg_runtime.Plan(A, B)
        assert right(gg_runtime.group_gemm(A, B), expected)
        assert right(plan.run(), expected)
        assert torch.cuda.current_device() == current
        assert torch.ones(1, device="cuda").device.index == current


@lists()
def test_devices_take_turns_in_one_thread(shapes):
    work = [make(f"cuda:{device}", shapes) for device in (0, 1)]
    for _ in range(20):
        results = [gg_runtime.group_gemm(A, B) for A, B, _ in work]
        assert all(right(C, expected) for C, (_, _, expected) in zip(results, work))


@lists()
def test_the_stream_is_that_of_the_tensors_device(shapes):
    A, B, expected = make("cuda:1", shapes)
    values = [a.clone() for a in A]
    for a in A:
        a.fill_(float("nan"))
    torch.cuda.synchronize("cuda:1")
    stream = torch.cuda.Stream("cuda:1")
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        for a, value in zip(A, values):
            a.copy_(value)
        with torch.cuda.device(0):  # does not change the current stream of cuda:1
            C = gg_runtime.group_gemm(A, B)
    stream.synchronize()
    assert right(C, expected)


def test_a_thread_for_each_device():
    def work(number):
        A, B, expected = make(f"cuda:{number % 2}", SIZES["by value"])
        for _ in range(100):
            assert right(gg_runtime.group_gemm(A, B), expected)

    in_threads(work)


def test_both_devices_give_the_same_bits():
    if torch.cuda.get_device_name(0) != torch.cuda.get_device_name(1):
        pytest.skip("the two GPUs are of different models")
    A, B = torch.randn(300, 500).half(), torch.randn(500, 200).half()
    results = [gg_runtime.group_gemm([A.to(f"cuda:{d}")], [B.to(f"cuda:{d}")])[0].cpu() for d in (0, 1)]
    assert torch.equal(*results)


def test_mixed_devices_are_refused():
    near, far = (torch.ones(64, 64, device=f"cuda:{device}").half() for device in (0, 1))
    for A, B, out in ((near, far, None), (far, near, None), (near, near, far)):
        with pytest.raises(ValueError, match="cuda:1"):
            gg_runtime.group_gemm([A], [B], out=out if out is None else [out])


def test_first_use_on_the_second_device_in_a_capture():
    script = """
import torch, gg_runtime
A = torch.randint(-2, 3, (64, 64), device="cuda:1").half()
near = A.to("cuda:0")
gg_runtime.group_gemm([near], [near])
torch.cuda.synchronize(0), torch.cuda.synchronize(1)
torch.cuda.set_device(1)
graph = torch.cuda.CUDAGraph()
expected = A @ A
with torch.cuda.graph(graph):
    (C,) = gg_runtime.group_gemm([A], [A])
C.fill_(float("nan"))
graph.replay()
torch.cuda.synchronize(1)
assert torch.equal(C, expected)
"""
    # Not from the checkout, whose sources would hide the installed package.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run([sys.executable, "-c", script], check=True, timeout=180, cwd=Path(__file__).parent, env=environment)


def test_preload_covers_every_device():
    assert gg_runtime.preload() == gg_runtime.preload(0) + gg_runtime.preload(1)
