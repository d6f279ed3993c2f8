"""DeepGEMM, compiled just in time for each shape. It pads groups; only their real rows count."""

import functools
from collections.abc import Iterable
from itertools import accumulate

import deep_gemm
import torch

from .moe_workload import Launch, RaggedCopy

Scales = tuple[torch.Tensor, torch.Tensor]  # [rows, blocks of K], [experts, blocks of N, blocks of K]
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
    return spread(copy.A, places, rows), places


def spread(of_rows: torch.Tensor, places: torch.Tensor, rows: int) -> torch.Tensor:
    """Rows at their places, zeros between them. As bytes: torch puts no e4m3 by an index."""
    wide = torch.zeros(rows, of_rows.shape[1], device="cuda", dtype=of_rows.dtype)
    wide.view(torch.uint8)[places] = of_rows.contiguous().view(torch.uint8)
    return wide


def contiguous(copy: RaggedCopy, scales: Scales | None = None) -> Launch:
    """Groups one after another; rows between them belong to none, -1. With scales: A and W are e4m3."""
    shape, rows = copy.shape, step()
    *starts, end = accumulate((-(-count // rows) * rows for count in shape.group_rows), initial=0)
    A, places = padded(copy, starts, end)
    D = torch.empty(end, shape.columns, device="cuda", dtype=copy.C.dtype)
    experts = torch.arange(shape.experts, dtype=torch.int32).repeat_interleave(torch.tensor(shape.group_rows))
    groups = torch.full((end,), -1, device="cuda", dtype=torch.int32)
    groups[places] = experts.cuda()
    if scales is None:
        call = functools.partial(deep_gemm.m_grouped_bf16_gemm_nt_contiguous, A, copy.W, D, groups)
    else:
        of_a = as_its_kernels_read(spread(scales[0], places, end))
        multiply = deep_gemm.m_grouped_fp8_gemm_nt_contiguous
        call = functools.partial(multiply, (A, of_a), (copy.W, scales[1]), D, groups)
    return Launch(call, lambda: D, places)


def as_its_kernels_read(scale_a: torch.Tensor) -> torch.Tensor:
    """Column-major, columns on 16 bytes: else the call would make a copy."""
    return deep_gemm.get_mn_major_tma_aligned_tensor(scale_a)


def masked(copy: RaggedCopy, scales: Scales | None = None) -> Launch:
    """Every group in a slab as high as the largest, with how many of its rows count. With scales: A and W are e4m3."""
    shape = copy.shape
    height = -(-max(shape.group_rows) // STEP) * STEP
    A, places = padded(copy, range(0, shape.experts * height, height), shape.experts * height)
    D = torch.empty(shape.experts, height, shape.columns, device="cuda", dtype=copy.C.dtype)
    counts = torch.tensor(shape.group_rows, device="cuda", dtype=torch.int32)
    slabs, expected = A.view(shape.experts, height, shape.depth), max(1, shape.rows // shape.experts)
    if scales is None:
        call = functools.partial(deep_gemm.m_grouped_bf16_gemm_nt_masked, slabs, copy.W, D, counts, expected)
    else:
        of_a = spread(scales[0], places, len(A)).view(shape.experts, height, -1)
        multiply = deep_gemm.m_grouped_fp8_gemm_nt_masked
        operands = (slabs, as_its_kernels_read(of_a)), (copy.W, scales[1])
        call = functools.partial(multiply, *operands, D, counts, expected)
    return Launch(call, lambda: D.flatten(0, 1), places)
