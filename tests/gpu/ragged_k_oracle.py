"""What a product with ragged K gives for any offs at all, and how far from it a result may be."""

import torch

from oracle import RELATIVE_SLACK
from scaled_oracle import group_ends


def group_ks(offs, total: int) -> list[slice]:
    """The K of each group; of an empty one nothing."""
    ends = group_ends(offs, total)
    return [slice(start, end) for start, end in zip([0, *ends], ends)]


def sums(mat_a, mat_b, offs):
    """[groups, M, N] in float64, group by group. Zeros for an empty one."""
    ks = group_ks(offs, mat_a.shape[1])
    found = torch.zeros(len(ks), mat_a.shape[0], mat_b.shape[1], device=mat_a.device, dtype=torch.float64)
    for of_group, k in zip(found, ks):
        if k.start < k.stop:
            of_group.copy_(mat_a[:, k].double() @ mat_b[k].double())
    return found


def assert_exact(C, mat_a, mat_b, offs, alpha=1.0, beta=0.0, before=None) -> None:
    """Equal to the last bit, for inputs of `fill_sparse_integers`, alpha and beta that are powers of two."""
    expected = alpha * sums(mat_a, mat_b, offs)
    if before is not None:
        expected += beta * before.double()
    expected = expected.to(C.dtype)
    assert C.shape == expected.shape
    wrong = (expected != C).nonzero()
    if len(wrong):
        group, row, column = wrong[0].tolist()
        raise AssertionError(
            f"{list(mat_a.shape)} @ {list(mat_b.shape)}: {len(wrong)} elements differ, first at "
            f"{[group, row, column]}: {C[group, row, column].item()} instead of "
            f"{expected[group, row, column].item()}; the groups' K is {group_ks(offs, mat_a.shape[1])}"
        )


def assert_close(C, mat_a, mat_b, offs, alpha=1.0, beta=0.0, before=None) -> None:
    """One rounding to C's dtype, and sums in float32 in any order."""
    expected = alpha * sums(mat_a, mat_b, offs)
    magnitudes = abs(alpha) * sums(mat_a.abs(), mat_b.abs(), offs)
    if before is not None:
        expected += beta * before.double()
        magnitudes += (beta * before.double()).abs()
    facts = torch.finfo(C.dtype)
    allowed = facts.eps / 2 * expected.abs().clamp(min=facts.tiny) + RELATIVE_SLACK * magnitudes
    off = (C.double() - expected).abs()
    # NaN is not <= anything, so a result that was never written fails as well.
    assert bool((off <= allowed).all()), f"up to {(off / allowed).max().item():.3g} times what is allowed"
