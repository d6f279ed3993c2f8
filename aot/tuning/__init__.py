"""A guest of the finished wheel: measures its kernels on a GPU and writes the tables that selection reads.

It uses the wheel's public API alone, and never Triton. Needs requirements/tune.txt, torch with CUDA and the wheel.
"""

import sys
from pathlib import Path

# The installed wheel is what is measured: it comes before the checkout, whose gg_runtime has no extension.
ROOT = Path(__file__).resolve().parents[2]
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != ROOT] + [str(ROOT)]
