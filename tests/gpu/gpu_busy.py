"""A GPU that has something else to do first: work that waits for it cannot be waited for without being seen."""

import contextlib

import torch

CYCLES = 600_000_000  # 0.3 s at 1.98 GHz


def occupy(cycles: int = CYCLES) -> torch.cuda.Event:
    """Keeps the current stream busy; the event says when it is done."""
    torch.cuda._sleep(cycles)
    done = torch.cuda.Event()
    done.record()
    return done


@contextlib.contextmanager
def host_must_not_wait(what: str = "the call"):
    """The body must come back to the host before the current stream has done what it had to do."""
    torch.cuda.synchronize()
    done = occupy()
    yield
    finished = done.query()
    torch.cuda.synchronize()
    assert not finished, f"{what} waited for the GPU"


def assert_no_call_waits(calls: dict) -> None:
    """Of name -> call, once a first round has loaded the kernels and filled the caching allocator."""
    for call in calls.values():
        call()
    for name, call in calls.items():
        with host_must_not_wait(name):
            for _ in range(5):
                call()
