"""Python scripts in processes of their own, with an environment that holds only what is said."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import gg_runtime

# What a process that was started under a sanitizer (tests/sanitize) hands on.
SANITIZERS = ("LD_PRELOAD", "ASAN_OPTIONS", "UBSAN_OPTIONS", "PYTHONMALLOC")

TESTS = Path(__file__).resolve().parent
PACKAGE = Path(gg_runtime.__file__).resolve().parent


def run_python(
    script: str, folder: Path, *, package: Path = PACKAGE, interpreter: str = sys.executable, **environment
) -> str:
    """Runs `script` in `folder` with `package` as gg_runtime and tests/ importable; returns what it printed.

    A script that fails raises AssertionError with all that it printed.
    """
    environment = {name: str(value) for name, value in environment.items()}
    environment |= {"PYTHONPATH": os.pathsep.join((str(package.parent), str(TESTS))), "PATH": ""}
    environment |= {name: os.environ[name] for name in SANITIZERS if name in os.environ}
    done = subprocess.run(
        [interpreter, "-c", textwrap.dedent(script)],
        env=environment, cwd=folder, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout
