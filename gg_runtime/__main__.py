"""`python -m gg_runtime`: what is embedded, what this machine would use, and whether both work."""

import argparse
import importlib
import sys
from typing import Any

from . import _C, CudaError, Plan, UnsupportedError, __version__, explain, kernels, manifest, verify
from .facts import Kernel
from .inventory import kernels_for

WORKED_EXAMPLE = (1024, 512, 256, 128)


def embedded() -> None:
    built = manifest()
    print(f"gg_runtime {__version__}: {verify()} images, hashes verified")
    print(f"  built with Triton {built['triton']} and ptxas {built['ptxas']}")
    groups: dict[tuple[int, str], list[Kernel]] = {}
    for kernel in kernels():
        groups.setdefault((kernel["sm"], kernel["kernel"]), []).append(kernel)
    for (sm, name), members in sorted(groups.items()):
        size = sum(member["cubin_bytes"] for member in members)
        ptx = " and PTX for later GPUs" if any(member["ptx_bytes"] for member in members) else ""
        print(f"  sm_{sm} {name}: {len(members)} variants, {size / 1e6:.2f} MB{ptx}")


def device_count() -> int:
    try:
        return _C.device_count()
    except (UnsupportedError, CudaError) as error:
        print(f"no GPU: {error}")
        return 0


def describe(ordinal: int) -> bool:
    """Prints what the device takes; whether it takes anything."""
    try:
        facts = _C.device(ordinal)
    except (UnsupportedError, CudaError) as error:
        print(f"  cuda:{ordinal}: {error}")
        return False
    origin = "PTX, which the driver compiles: no cubin fits this GPU" if facts["from_ptx"] else "cubins"
    print(
        f"  cuda:{ordinal} {facts['name']}, sm_{facts['sm']}, {facts['multiprocessors']} multiprocessors: "
        f"takes {len(kernels_for(facts))} kernels of sm_{facts['kernels_sm']}, from {origin}"
    )
    return True


def worked_example(ordinal: int) -> bool:
    """A[i] @ B[i] for square matrices of 1024, 512, 256 and 128 in float16, against torch.matmul at atol 1e-2."""
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError:
        print("torch is not installed: the worked example was not run")
        return True
    if not torch.cuda.is_available():
        print("torch sees no GPU, is it a CPU build? The worked example was not run")
        return True

    def normal(n: int) -> Any:
        return torch.randn((n, n), device=f"cuda:{ordinal}", dtype=torch.float16)

    # Scaled so that an element of the product is about 1, where 1e-2 is a few float16 roundings.
    group_A = [normal(n) for n in WORKED_EXAMPLE]
    group_B = [normal(n) / n**0.5 for n in WORKED_EXAMPLE]
    outputs = Plan(group_A, group_B).run()
    error = max((c - a @ b).abs().max().item() for a, b, c in zip(group_A, group_B, outputs))
    print(f"worked example {WORKED_EXAMPLE}: largest difference from torch.matmul {error:.1e} (at most 1e-2)")
    print(f"  {str(explain(group_A, group_B)).splitlines()[0]}")
    return error <= 1e-2


def main() -> int:
    argparse.ArgumentParser(prog="python -m gg_runtime", description=(__doc__ or "").partition(": ")[2]).parse_args()
    embedded()
    count = device_count()
    if count == 0:
        return 0
    version = _C.driver_version()
    print(f"driver for CUDA {version // 1000}.{version % 1000 // 10}, {count} GPU(s)")
    usable = [ordinal for ordinal in range(count) if describe(ordinal)]
    return 0 if usable and worked_example(usable[0]) else 1


if __name__ == "__main__":
    sys.exit(main())
