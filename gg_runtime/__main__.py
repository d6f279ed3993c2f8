"""`python -m gg_runtime`: what is embedded, what this machine would use, and whether both work."""

import sys

from . import Plan, UnsupportedError, _C, __version__, explain, kernels, manifest, verify

WORKED_EXAMPLE = (1024, 512, 256, 128)


def embedded() -> None:
    built = manifest()
    print(f"gg_runtime {__version__}: {verify()} images, hashes verified")
    print(f"  built with Triton {built['triton']} and ptxas {built['ptxas']}")
    groups: dict[tuple, list[dict]] = {}
    for kernel in kernels():
        groups.setdefault((kernel["sm"], kernel["kernel"]), []).append(kernel)
    for (sm, name), members in sorted(groups.items()):
        size = sum(member["cubin_bytes"] for member in members)
        ptx = " and PTX for later GPUs" if any(member["ptx_bytes"] for member in members) else ""
        print(f"  sm_{sm} {name}: {len(members)} variants, {size / 1e6:.2f} MB{ptx}")


def devices() -> int:
    try:
        count = _C.device_count()
    except UnsupportedError as error:
        print(f"no GPU: {error}")
        return 0
    version = _C.driver_version()
    print(f"driver for CUDA {version // 1000}.{version % 1000 // 10}, {count} GPU(s)")
    for ordinal in range(count):
        facts = _C.device(ordinal)
        names = _C.eligible(facts["sm"], facts["shared_bytes_per_block"])
        print(f"  cuda:{ordinal} {facts['name']}, sm_{facts['sm']}, {facts['multiprocessors']} multiprocessors: "
              f"{len(names)} kernels run on it")
    return count


def worked_example() -> bool:
    """A[i] @ B[i] for square matrices of 1024, 512, 256 and 128 in float16, against torch.matmul at atol 1e-2."""
    try:
        import torch
    except ImportError:
        print("torch is not installed: the worked example was not run")
        return True
    sizes = [(n, n) for n in WORKED_EXAMPLE]
    # Scaled so that an element of the product is about 1, where 1e-2 is a few float16 roundings.
    group_A = [torch.randn(size, device="cuda", dtype=torch.float16) for size in sizes]
    group_B = [torch.randn(size, device="cuda", dtype=torch.float16) / size[0] ** 0.5 for size in sizes]
    outputs = Plan(group_A, group_B).run()
    error = max((c - a @ b).abs().max().item() for a, b, c in zip(group_A, group_B, outputs))
    print(f"worked example {WORKED_EXAMPLE}: largest difference from torch.matmul {error:.1e} (at most 1e-2)")
    print(f"  {str(explain(group_A, group_B)).splitlines()[0]}")
    return error <= 1e-2


def main() -> int:
    embedded()
    return 0 if devices() == 0 or worked_example() else 1


if __name__ == "__main__":
    sys.exit(main())
