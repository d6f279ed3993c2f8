"""DeepGEMM, compiled just in time for each shape. It pads groups; only their real rows count."""

import functools
from collections.abc import Iterable
from itertools import accumulate

import deep_gemm
import torch

from .moe_workload import Launch, RaggedCopy

STEP = 128  # rows that groups are padded to, where it does not say


def step() -> int:
    if not hasattr(deep_gemm, "get_theoretical_mk_alignment_for_contiguous_layout"):
        return STEP
    rows = deep_gemm.get_theoretical_mk_alignment_for_contiguous_layout()
    deep_gemm.set_mk_alignment_for_contiguous_layout(rows)
    return rows


def padded(copy: RaggedCopy, starts: Iterable[int], rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A with each group from its start on, zeros between them, and where its rows lie in that."""
    spans = [torch.arange(start, start + count) for start, count in zip(starts, copy.shape.group_rows)]
    places = torch.cat(spans).cuda()
    A = torch.zeros(rows, copy.shape.depth, device="cuda", dtype=copy.A.dtype)
    A[places] = copy.A
    return A, places


def contiguous(copy: RaggedCopy) -> Launch:
    """Groups one after another; rows between them belong to none, -1."""
    shape, rows = copy.shape, step()
    *starts, end = accumulate((-(-count // rows) * rows for count in shape.group_rows), initial=0)
    A, places = padded(copy, starts, end)
    D = torch.empty(end, shape.columns, device="cuda", dtype=copy.C.dtype)
    experts = torch.arange(shape.experts, dtype=torch.int32).repeat_interleave(torch.tensor(shape.group_rows))
    groups = torch.full((end,), -1, device="cuda", dtype=torch.int32)
    groups[places] = experts.cuda()
    call = functools.partial(deep_gemm.m_grouped_bf16_gemm_nt_contiguous, A, copy.W, D, groups)
    return Launch(call, lambda: D, places)


def masked(copy: RaggedCopy) -> Launch:
    """Every group in a slab as high as the largest, with how many of its rows count."""
    shape = copy.shape
    height = -(-max(shape.group_rows) // STEP) * STEP
    A, places = padded(copy, range(0, shape.experts * height, height), shape.experts * height)
    D = torch.empty(shape.experts, height, shape.columns, device="cuda", dtype=copy.C.dtype)
    counts = torch.tensor(shape.group_rows, device="cuda", dtype=torch.int32)
    slabs, expected = A.view(shape.experts, height, shape.depth), max(1, shape.rows // shape.experts)
    call = functools.partial(deep_gemm.m_grouped_bf16_gemm_nt_masked, slabs, copy.W, D, counts, expected)
    return Launch(call, lambda: D.flatten(0, 1), places)
