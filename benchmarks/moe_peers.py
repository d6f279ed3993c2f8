"""Who multiplies ragged products, and how each is called on one copy."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch

import gg_runtime

from . import cublas
from .moe_workload import TOLERANCE, Launch, RaggedCopy
from .peers import OURS, installed
from .shapes import RaggedShape
from .timing import Call

CUBLAS_LOOP, CUBLAS_GROUPED = "cuBLAS loop", "cuBLAS grouped"
TORCH = "torch grouped_mm"
FAST_TOLERANCE = 3e-2  # for sums that stay in the tensor cores, whose own have fewer bits than float32
MOST_MASKED_ROWS = 256  # an expert on average; above, nobody would pad every group to the largest


@dataclass(frozen=True)
class RaggedPeer:
    name: str
    bind: Callable[[RaggedCopy], Launch]
    tolerance: float = TOLERANCE


def in_place(call: Call, copy: RaggedCopy) -> Launch:
    return Launch(call, lambda: copy.C)


def allocating(call: Callable[[], torch.Tensor]) -> Launch:
    """For a call that makes its output: the last one is kept, else a graph gives its memory to the next."""
    kept = []

    def keep():
        kept[:] = [call()]

    return Launch(keep, lambda: kept[0])


def ours(copy: RaggedCopy) -> Launch:
    A, B, C, offs = copy.A, copy.B, copy.C, copy.offs
    return in_place(lambda: gg_runtime.grouped_mm(A, B, offs=offs, out=C), copy)


def cublas_loop(copy: RaggedCopy) -> Launch:
    return in_place(cublas.loop(copy.products, "nt"), copy)


def cublas_scaled_loop(copy: RaggedCopy, fast: bool = False) -> Launch:
    one = torch.ones((), device="cuda")
    triples = list(zip(copy.products.A, copy.products.B["nt"], copy.products.C))
    multiply = torch._scaled_mm  # pyright: ignore[reportPrivateImportUsage]  torch has no public name for it

    def call():
        for a, b, c in triples:
            multiply(a, b, one, one, out_dtype=c.dtype, use_fast_accum=fast, out=c)

    return in_place(call, copy)


def cublas_grouped(copy: RaggedCopy) -> Launch:
    return in_place(cublas.grouped(copy.products, "nt"), copy)


def torch_grouped(copy: RaggedCopy) -> Launch:
    return allocating(functools.partial(torch.nn.functional.grouped_mm, copy.A, copy.B, offs=copy.offs))


def torch_scaled_grouped(copy: RaggedCopy, fast: bool = False) -> Launch:
    """It wants a scale for each row of A and each column of B: ones."""
    scale_a = torch.ones(copy.shape.rows, device="cuda")
    scale_b = torch.ones(copy.shape.experts, copy.shape.columns, device="cuda")
    options = {"offs": copy.offs, "out_dtype": copy.C.dtype, "use_fast_accum": fast}
    multiply = torch._scaled_grouped_mm  # pyright: ignore[reportPrivateImportUsage]  nor for this
    return allocating(functools.partial(multiply, copy.A, copy.B, scale_a, scale_b, **options))


def tutorial_tma(copy: RaggedCopy) -> Launch:
    from . import tutorial

    return in_place(tutorial.call(copy.products, "nt", tutorial.tma), copy)


def deep_gemm_contiguous(copy: RaggedCopy) -> Launch:
    from . import deepgemm

    return deepgemm.contiguous(copy)


def deep_gemm_masked(copy: RaggedCopy) -> Launch:
    from . import deepgemm

    return deepgemm.masked(copy)


def peers(shape: RaggedShape, tuned: bool) -> list[RaggedPeer]:
    """Ours first. `tuned`: with the tutorial's kernel, which takes long to compile and tune."""
    if shape.dtype == "e4m3":
        fast, fast_loop = (functools.partial(one, fast=True) for one in (torch_scaled_grouped, cublas_scaled_loop))
        return [
            RaggedPeer(OURS, ours),
            RaggedPeer(CUBLAS_LOOP, cublas_scaled_loop),
            RaggedPeer(f"{CUBLAS_LOOP} fast", fast_loop, FAST_TOLERANCE),
            RaggedPeer(TORCH, torch_scaled_grouped),
            RaggedPeer(f"{TORCH} fast", fast, FAST_TOLERANCE),
        ]
    found = [
        RaggedPeer(OURS, ours),
        RaggedPeer(CUBLAS_LOOP, cublas_loop),
        RaggedPeer(CUBLAS_GROUPED, cublas_grouped),
        RaggedPeer(TORCH, torch_grouped),
    ]
    if tuned and installed("triton"):
        found.append(RaggedPeer("tutorial TMA", tutorial_tma))
    if installed("deep_gemm"):
        found.append(RaggedPeer("DeepGEMM contiguous", deep_gemm_contiguous))
        if shape.rows <= MOST_MASKED_ROWS * shape.experts:
            found.append(RaggedPeer("DeepGEMM masked", deep_gemm_masked))
    return found
