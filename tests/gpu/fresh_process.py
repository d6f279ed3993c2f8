"""Runs Python in a fresh process that cannot import triton: for first uses, and for faults that end a process."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

PREAMBLE = "import no_triton; no_triton.install()\n"


def start(script: str, *, under: Sequence[str] = (), **environment: str) -> subprocess.Popen:
    """Starts `script`; `under` is a command to run it with, such as a sanitizer."""
    return subprocess.Popen(
        [*under, sys.executable, "-c", PREAMBLE + script],
        cwd=Path(__file__).parent,  # not the checkout, whose sources would hide the installed package
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: subprocess.Popen, timeout: float = 180) -> tuple[int, str]:
    """Exit status and output; a process that outlasts the timeout is killed."""
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
        raise AssertionError(f"the child did not end within {timeout} s:\n{output}") from None
    return process.returncode, output


def run(script: str, *, timeout: float = 180, **environment: str) -> str:
    """The output of `script`, which must succeed."""
    status, output = finish(start(script, **environment), timeout)
    assert status == 0, f"the child ended with {status}:\n{output}"
    return output
