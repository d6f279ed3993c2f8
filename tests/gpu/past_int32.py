"""Matrices of more elements than int32 counts, and their products."""

import torch

PAST_INT32 = 2**31
LONG = PAST_INT32 // 8 + 136  # 8 of these are past it


def integers(*shape):
    return torch.randint(-2, 3, shape, device="cuda", dtype=torch.int8).half()


def nan(*shape):
    return torch.full(shape, float("nan"), device="cuda", dtype=torch.float16)


def assert_rows(C, A, B, of: str = "", rows: int = 2**22) -> None:
    """Small integers: any kernel's result is exact, so that the two must be equal; a part of the rows at a time."""
    for start in range(0, C.shape[0], rows):
        assert torch.equal(C[start : start + rows], A[start : start + rows] @ B), f"rows from {start} on{of}"
