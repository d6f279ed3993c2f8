# pyright: standard
"""Shapes of outputs, for torch's tracing: with sizes that may be symbols."""

from typing import Any

import torch

from ..reference.activations import GATED


def of_grouped_mm(mat_a: Any, mat_b: Any, offs: Any, a_index: Any, activation: str | None) -> tuple[Any, ...]:
    """That of `gg_runtime.grouped_mm`.

    Raises:
        ValueError: ranks that are no form, or `offs` where there must be none, or none where there must be some.
    """
    ranks = mat_a.dim(), mat_b.dim()
    if ranks not in ((2, 2), (2, 3), (3, 2), (3, 3)):
        raise ValueError(f"grouped_mm: mat_a has {ranks[0]} dimensions and mat_b {ranks[1]}; 2 or 3 are needed")
    if (offs is None) != (ranks == (3, 3)):
        wrong = "offs is missing" if offs is None else "offs is given, and two stacks of matrices have none"
        raise ValueError(f"grouped_mm: {wrong}; it goes with a 2-D mat_a, a 2-D mat_b or both")
    if ranks != (2, 2):
        columns, rows = mat_a.shape[-1], mat_b.shape[-2]
        torch._check(
            columns == rows,
            lambda: f"grouped_mm: mat_a has K={columns} columns and mat_b K={rows} rows; they need to be equal",
        )
    columns = mat_b.shape[-1] // 2 if activation in GATED else mat_b.shape[-1]
    if ranks == (2, 3):
        return (mat_a if a_index is None else a_index).shape[0], columns
    if ranks == (3, 2):
        return mat_a.shape[1], columns
    groups = offs.shape[0] if ranks == (2, 2) else mat_a.shape[0]
    return groups, mat_a.shape[-2], columns


def dtype_of_product(mat_a: Any, out_dtype: Any) -> Any:
    """The dtype of an output for which `out_dtype` is wanted."""
    if out_dtype is not None:
        return out_dtype
    return torch.bfloat16 if mat_a.dtype in (torch.float8_e4m3fn, torch.float8_e5m2) else mat_a.dtype
