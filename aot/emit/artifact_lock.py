"""aot/artifacts.lock: the machine code of every artifact by its hash, kept so that a review sees it change.

A kernel's source may change and its machine code not, and the other way round with another Triton: the lock tells.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from ..spec.variants import variants

PATH = Path(__file__).parents[1] / "artifacts.lock"
ARCHS = (80, 90)  # what `make build` compiles for unless it is told otherwise
HEAD = """\
# The images of every artifact for sm_80 and sm_90, by sha256. Written by `make lock-artifacts`; a test compares.
triton {triton}
ptxas {ptxas}
"""
MOST_NAMES = 3  # of a kernel, in a message


class LockError(Exception):
    """The lock cannot be written from what was built."""


@dataclass(frozen=True)
class Lock:
    triton: str
    ptxas: str
    images: dict[str, dict[str, str]]  # name of an artifact -> "cubin" and, where it is embedded, "ptx" -> sha256

    @property
    def compiler(self) -> str:
        return f"Triton {self.triton}, ptxas {self.ptxas}"


def of_manifest(manifest: dict) -> Lock:
    """What was built for the architectures of the lock."""
    artifacts = {name: entry for name, entry in manifest["artifacts"].items() if entry["sm"] in ARCHS}
    kinds = ("cubin", "ptx")
    images = {
        name: {kind: entry[kind]["sha256"] for kind in kinds if kind in entry} for name, entry in artifacts.items()
    }
    return Lock(manifest["triton"], manifest["ptxas"], images)


def lock_text(lock: Lock) -> str:
    """One artifact a line, in the order of names."""
    lines = (
        " ".join([name, *(f"{kind}:{digest}" for kind, digest in sorted(lock.images[name].items()))])
        for name in sorted(lock.images)
    )
    return HEAD.format(triton=lock.triton, ptxas=lock.ptxas) + "".join(f"{line}\n" for line in lines)


def read_lock(text: str) -> Lock:
    triton, ptxas, *artifacts = (line.split() for line in text.splitlines() if not line.startswith("#"))
    images = {name: dict(image.split(":") for image in found) for name, *found in artifacts}
    return Lock(triton[1], ptxas[1], images)


def expected() -> set[str]:
    """The names of all artifacts that aot/tables and aot/spec ask for."""
    return {variant.name for variant in variants(ARCHS)}


def updated(lock: Lock | None, built: Lock, names: set[str]) -> Lock:
    """The lock with what was built, and of what was not, as in a build of some kernels alone, what it had.

    Raises LockError if that would mix the code of two compilers, or leave an artifact without a hash.
    """
    kept = {name: images for name, images in lock.images.items() if name in names - built.images.keys()} if lock else {}
    if kept and lock.compiler != built.compiler:
        raise LockError(f"the lock is of {lock.compiler}, the build of {built.compiler}: build every kernel first")
    if missing := names - built.images.keys() - kept.keys():
        raise LockError(f"{_some(missing)} was never built: run `make build` without KERNELS")
    return replace(built, images=kept | {name: built.images[name] for name in names & built.images.keys()})


def differences(lock: Lock, built: Lock, names: set[str]) -> list[str]:
    """What the lock and a build do not agree on, one sentence each. What was not built is not compared."""
    there = lock.images.keys() & built.images.keys()
    changed = {name for name in there if lock.images[name] != built.images[name]}
    found = (
        [f"the lock is of {lock.compiler}, the build of {built.compiler}"] if lock.compiler != built.compiler else []
    )
    found += _by_kernel(changed, there, "have other machine code")
    found += _by_kernel(names - lock.images.keys(), names, "are not in the lock")
    found += _by_kernel(lock.images.keys() - names, lock.images.keys(), "are in the lock and no longer built")
    return found


def _by_kernel(which: set[str], among: set[str], what: str) -> Iterator[str]:
    """`hopper_sm90: 2 of 67 have other machine code: ...`"""
    for kernel, members in groupby(sorted(which, key=lambda name: (_kernel(name), name)), _kernel):
        of = sum(_kernel(name) == kernel for name in among)
        listed = list(members)
        yield f"{kernel}: {len(listed)} of {of} {what}: {_some(listed)}"


def _kernel(name: str) -> str:
    """hopper_ragged_sm90 of hopper_ragged_sm90_bf16_..."""
    before, _, after = name.partition("_sm")
    return f"{before}_sm{after.partition('_')[0]}"


def _some(names: set[str] | list[str]) -> str:
    first = sorted(names)[:MOST_NAMES]
    return ", ".join(first) + (f" and {len(names) - len(first)} more" if len(names) > len(first) else "")
