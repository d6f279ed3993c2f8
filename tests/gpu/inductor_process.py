"""Runs Python in a fresh process that has torch's Triton: Inductor's own kernels need it."""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

MISSING = (
    "Inductor's kernels need Triton, which is not installed"
    if find_spec("triton") is None
    else None
    if shutil.which("cc") or shutil.which("gcc")
    else "Triton makes launchers by a C compiler"
)
needs_inductor = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))


def run(script: str, scratch: Path) -> None:
    """`script` must succeed; its caches go to `scratch`."""
    caches = {name: str(scratch / name) for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")}
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=Path(__file__).parent,  # not the checkout, whose sources would hide the installed package
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **caches},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
