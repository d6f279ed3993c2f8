"""Runs the scripts interpreted_*.py, which compare kernels in Triton's interpreter with exact results."""

import json
import subprocess
import sys
from pathlib import Path


def run_interpreted(name: str, *arguments) -> None:
    """`name`: what the script's has behind interpreted_. Arguments that are no text go as JSON."""
    words = [one if isinstance(one, str) else json.dumps(one) for one in arguments]
    command = [sys.executable, Path(__file__).with_name(f"interpreted_{name}.py"), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.stdout == "equal\n", done.stderr[-4000:]
