"""grouped_mm with a ragged K and scales of blocks along it, in float64; and how far from it a result may be."""

import torch

from scaled_oracle import BLOCK, ROUNDOFF, SLACK, blocks, powers_of_two


def ends_of(offs, total: int, alignment: int) -> list[int]:
    """Where each group ends, for any offs."""
    ends, end = [], 0
    for offset in offs.tolist():
        end = min(max(offset, end), total)
        end = min(-(-end // alignment) * alignment, total)
        ends.append(end)
    return ends


def spans(offs, total: int, alignment: int) -> list[tuple[slice, int]]:
    """The K of each group, and its first block."""
    found, start, block = [], 0, 0
    for end in ends_of(offs, total, alignment):
        found.append((slice(start, end), block))
        start, block = end, block + blocks(end - start)
    return found


def most_blocks(total: int, groups: int) -> int:
    return total // BLOCK + groups


def make_scales(m: int, n: int, count: int, device, make=None):
    """scale_a and scale_b of so many blocks: powers of two, or what `make` gives for a shape."""
    make = make or (lambda shape: powers_of_two(shape, device))
    return make((m, count)), make((count, n))


def product(A, B, offs, scale_a, scale_b, alignment=1):
    """[E, M, N] in float64, and the sums of magnitudes. What lies in no group enters no sum."""
    a, b = A.double(), B.double()
    of_a, of_b = (scale.double() for scale in (scale_a, scale_b))
    exact, magnitude = [], []
    for k, first in spans(offs, A.shape[1], alignment):
        block = (first + torch.arange(k.stop - k.start, device=A.device) // BLOCK).clamp(max=of_b.shape[0] - 1)
        left, right = a[:, k] * of_a[:, block], b[k] * of_b[block]
        exact.append(left @ right)
        magnitude.append(left.abs() @ right.abs())
    return torch.stack(exact), torch.stack(magnitude)


def expected(*operands, alignment=1, alpha=1.0, beta=0.0, before=None):
    """alpha * products + beta * what was there, and the sums of magnitudes."""
    exact, magnitude = product(*operands, alignment)
    exact, magnitude = alpha * exact, abs(alpha) * magnitude
    if before is None:
        return exact, magnitude
    return exact + beta * before.double(), magnitude + (beta * before.double()).abs()


def assert_exact(C, *operands, **others) -> None:
    """Equal to the last bit, for small integers and scales that are powers of two."""
    right = expected(*operands, **others)[0].float().to(C.dtype)
    assert C.shape == right.shape
    wrong = (right != C).nonzero()
    if len(wrong):
        at = tuple(wrong[0].tolist())
        raise AssertionError(
            f"{len(wrong)} elements of {C.numel()} differ, first at {at}: {C[at].item()} instead of {right[at].item()}"
        )


def worst_share(C, *operands, **others) -> float:
    """The greatest error as a share of what it may be; NaN where there is one."""
    exact, magnitude = expected(*operands, **others)
    relative, least = ROUNDOFF[C.dtype]
    allowed = (relative * exact.abs() + SLACK[C.device.type] * magnitude) * (1 + relative) + least
    return ((C.double() - exact).abs() / allowed).max().item()
