"""What grouped_mm gives for any offs at all, and how far from it a result may be."""

import torch

import oracle
from scaled_oracle import group_ends


def group_rows(offs, rows: int) -> list[tuple[int, slice]]:
    """(group, its rows) of the groups that have any."""
    ends = group_ends(offs, rows)
    return [(group, slice(start, end)) for group, (start, end) in enumerate(zip([0, *ends], ends)) if start < end]


def product(mat_a, mat_b, offs, *, dtype=None, bias=None, scale_a=None, scale_b=None):
    """[rows, N] of `dtype` (the inputs' by default): float32 sums, rounded once; zeros past the last group."""
    sums = torch.zeros(mat_a.shape[0], mat_b.shape[2], device=mat_a.device)
    for group, rows in group_rows(offs, mat_a.shape[0]):
        part = mat_a[rows].float() @ mat_b[group].float()
        if scale_a is not None:
            part *= scale_a.view(())
        if scale_b is not None:
            part *= scale_b.view(-1)[group % scale_b.numel()]  # one element: of all groups
        if bias is not None:
            part += bias[group].float()
        sums[rows] = part
    return sums.to(dtype or mat_a.dtype)


def assert_exact(C, mat_a, mat_b, offs, **operands) -> None:
    """Equal to the last bit, for inputs of `fill_sparse_integers`, scales that are powers of two and integer biases."""
    expected = product(mat_a, mat_b, offs, dtype=C.dtype, **operands).float()
    assert C.shape == expected.shape
    wrong = (C.float() != expected).nonzero()
    if len(wrong):
        row, column = wrong[0].tolist()
        ends = group_ends(offs, C.shape[0])
        group = sum(end <= row for end in ends)
        raise AssertionError(
            f"{list(mat_a.shape)} @ {list(mat_b.shape)}: {len(wrong)} elements differ, first at [{row}, {column}], "
            f"{f'of group {group}' if group < len(ends) else 'past the groups'}: "
            f"{C[row, column].item()} instead of {expected[row, column].item()}; groups end at {ends}"
        )


def assert_close(C, mat_a, mat_b, offs) -> None:
    """Each group as close as oracle.assert_close has it; zeros past the last one."""
    groups = group_rows(offs, C.shape[0])
    parts = [C[rows] for _, rows in groups], [mat_a[rows] for _, rows in groups], [mat_b[g] for g, _ in groups]
    oracle.assert_close(*parts)
    past = C[groups[-1][1].stop if groups else 0 :]
    assert bool((past.float() == 0).all()), "rows past the last group are not zero"
