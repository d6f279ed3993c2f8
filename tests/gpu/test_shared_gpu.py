"""Processes that share a GPU: its multiprocessors change from one to another in the middle of kernels."""

import pytest

import fresh_process
from cases import device_sm

PROCESSES = 3
SECONDS = 8


@pytest.mark.skipif(device_sm() != 90, reason="the kernels in question are those for sm_90")
def test_kernels_that_are_interrupted_by_other_processes():
    """A barrier in shared memory that the compiler had given away came back when a kernel was resumed."""
    script = f"import neighbours; neighbours.run({SECONDS})"
    started = [fresh_process.start(script) for _ in range(PROCESSES)]
    ended = [fresh_process.finish(process) for process in started]
    assert [status for status, _ in ended] == [0] * PROCESSES, "\n".join(output[-2000:] for _, output in ended)
