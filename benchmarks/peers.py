"""Who is compared, on which layouts, and on which lists: name -> how to call it on one copy of a list."""

import functools
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

import gg_runtime

from . import cublas
from .shapes import Shape
from .timing import Call
from .workload import Copy

OURS = "gg_runtime"


@dataclass(frozen=True)
class Peer:
    name: str
    layouts: tuple[str, ...]
    kernel: Callable[[Copy, str], Call]  # timed under a graph
    eager: Callable[[Copy, str], Call]  # timed eagerly and on the host
    divisor: int = 1  # that every size must have

    def takes(self, shapes: list[Shape]) -> bool:
        return all(size % self.divisor == 0 for shape in shapes for size in shape)


@functools.cache
def installed(module: str) -> bool:
    """Whether a peer's package is there; says once that one is not."""
    found = importlib.util.find_spec(module) is not None
    if not found:
        print(f"{module} is not installed: its kernels are left out")
    return found


def reason(error: Exception) -> str:
    """A failure as a result."""
    return f"{type(error).__name__}: {str(error)[:200]}"


def plan(copy: Copy, layout: str) -> Call:
    return gg_runtime.Plan(copy.A, copy.B[layout], out=copy.C).run


def group_gemm(copy: Copy, layout: str) -> Call:
    return lambda: gg_runtime.group_gemm(copy.A, copy.B[layout], out=copy.C)


def peers() -> list[Peer]:
    """Ours first. The tutorial's kernels join where Triton is installed."""
    both = ("nn", "nt")
    found = [
        Peer(OURS, both, plan, group_gemm),
        Peer("cuBLAS loop", both, cublas.loop, cublas.loop),
        Peer("cuBLAS grouped", both, cublas.grouped, cublas.grouped),
    ]
    if not installed("triton"):
        return found
    from . import tutorial

    def basic(copy, layout):
        return tutorial.call(copy, layout, tutorial.basic)

    def tma(copy, layout):
        return tutorial.call(copy, layout, tutorial.tma)

    return [*found, Peer("tutorial basic", ("nn",), basic, basic, divisor=128), Peer("tutorial TMA", ("nt",), tma, tma)]
