"""Scripts in several processes that torchrun starts on this machine."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def torchrun(script: str, *arguments: str, processes: int, timeout: float = 300) -> str:
    """Runs a script of the checkout; returns what its processes printed. AssertionError with all of it if one fails."""
    done = subprocess.run(
        # The safe path: the checkout's own gg_runtime has no extension. The address: names need not resolve.
        [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1",
            "--nproc-per-node", str(processes), str(ROOT / script), *arguments,
        ],
        env=os.environ | {
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1",
        },
        cwd=ROOT / "tests", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout
