"""gg_runtime beside its peers, in one run on one GPU. `python -m benchmarks`; NOTES.md has the method."""

import sys
from pathlib import Path

# The installed wheel is what is timed, so the checkout, which has the package's sources without kernels, comes last.
_ROOT = Path(__file__).resolve().parents[1]
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != _ROOT] + [str(_ROOT)]
