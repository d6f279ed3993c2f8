"""An emulator of PTX behind faults/fake_cuda.c: tests of tests/gpu run without a GPU, on the kernels' own PTX.

`python -m emulator tests/gpu/test_quantize.py` is pytest with torch's CUDA tensors in host memory. Each launch runs
its CTAs one after the other. The warps of a CTA take turns in an order drawn from a seed, loads and products end as
late as their waits allow, and shared memory starts with random bytes, so a missing wait gives another result. An access
outside of what calls were given, a deadlock, an instruction that is not known and a missing fence.proxy.async between
what threads and what TMA or wgmma do in shared memory end the test.

It says nothing of time, of the order in which memory is seen by others, or of what ptxas makes of the PTX. Only cubins
that `make build` left in build/cache are known. There are no graphs, no clusters of CTAs, and one device.
"""

import os
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
CACHE = ROOT / "build/cache"
H200 = {  # as fake_cuda.c takes it
    "FAKE_CUDA_NAME": "NVIDIA H200",
    "FAKE_CUDA_DEVICES": 1,
    "FAKE_CUDA_CLOCK_KHZ": 1980000,
    "FAKE_CUDA_MEMORY_CLOCK_KHZ": 3201000,
    "FAKE_CUDA_BUS_BITS": 6016,
}


def build_libraries(folder: Path) -> None:
    """libcuda.so.1, which is the emulator, and aligned.so, by which the C library allocates as a GPU's allocator."""
    from aot.build import native

    folder.mkdir(parents=True, exist_ok=True)
    # Without a soname: a process that loads it by its path must not find it when it asks for the driver.
    native.shared_library(folder / "libcuda.so.1", [*sorted(FOLDER.glob("*.cpp")), FOLDER / "rest_of_driver.c"])
    native.shared_library(folder / "aligned.so", [FOLDER / "aligned.c"], link_flags=["-ldl"])


def run_tests(libraries: Path, *arguments: str, seed: int = 1, **options) -> subprocess.CompletedProcess:
    """pytest of `arguments` in a process of its own. `options` are those of subprocess.run."""
    environment = {name: str(value) for name, value in H200.items()} | {
        "EMULATOR_CACHE": str(CACHE),
        "EMULATOR_SEED": str(seed),
        "LD_LIBRARY_PATH": str(libraries),
        "LD_PRELOAD": str(libraries / "aligned.so"),
        "OMP_NUM_THREADS": "1",  # its threads would spin while a kernel runs
        "PYTHONPATH": str(FOLDER.parent),
        "PYTHONSAFEPATH": "1",  # gg_runtime is the installed one
    }
    command = [sys.executable, "-m", "pytest", "-p", "emulator.cuda_on_cpu", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, env=os.environ | environment, cwd=ROOT, **options)
