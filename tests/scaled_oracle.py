"""grouped_mm with scales by row and column, or by block, in float64; and how far from it a result may be."""

import torch

BLOCK = 128
E4M3 = torch.float8_e4m3fn
MODES = ("row", "block")
# Half a unit in the last place, relative to the value and at least.
ROUNDOFF = {
    torch.float32: (2**-24, 2**-150),
    torch.float16: (2**-11, 2**-25),
    torch.bfloat16: (2**-8, 2**-134),
    E4M3: (2**-4, 2**-10),
}
# Of the sum of magnitudes: of a step of 32 products a tensor core keeps 13 bits, and a sum is moved to float32 after
# 128 products at most.
SLACK = {"cuda": 2**-11, "cpu": 2**-20}


def blocks(size: int) -> int:
    return -(-size // BLOCK)


def shapes(mode: str, rows: int, groups: int, n: int, k: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Of scale_a and of scale_b."""
    if mode == "row":
        return (rows,), (groups, n)
    return (rows, blocks(k)), (groups, blocks(n), blocks(k))


def spread(scale_a, scale_b, n: int, k: int):
    """The factor of each element of A [rows, K], and of B [E, K, N], in float64."""
    scale_a, scale_b = scale_a.double(), scale_b.double()
    if scale_b.ndim == 2:
        return scale_a[:, None].expand(-1, k), scale_b[:, None].expand(-1, k, -1)
    of_a = scale_a.repeat_interleave(BLOCK, 1)[:, :k]
    of_b = scale_b.repeat_interleave(BLOCK, 1)[:, :n].repeat_interleave(BLOCK, 2)[:, :, :k]
    return of_a, of_b.mT


def ends_of(offs, rows: int) -> list[int]:
    """Where each group ends, for any offs."""
    ends, end = [], 0
    for offset in offs.tolist():
        end = min(max(offset, end), rows)
        ends.append(end)
    return ends


def product(A, B, offs, scale_a, scale_b, bias=None):
    """[rows, N] in float64, and the sums of magnitudes; zeros past the last group, where nothing of A is read."""
    k, n = B.shape[1:]
    of_a, of_b = spread(scale_a, scale_b, n, k)
    exact = torch.zeros(A.shape[0], n, dtype=torch.float64, device=A.device)
    magnitude, start = exact.clone(), 0
    for group, end in enumerate(ends_of(offs, A.shape[0])):
        rows = slice(start, end)
        a, b = A[rows].double() * of_a[rows], B[group].double() * of_b[group]
        exact[rows], magnitude[rows] = a @ b, a.abs() @ b.abs()
        if bias is not None:
            exact[rows] += bias[group].double()
        start = end
    return exact, magnitude


def rounded(exact, dtype):
    """As kernels round float32 sums: what e4m3 cannot hold becomes its largest value."""
    sums = exact.float()
    return sums.clamp(-448, 448).to(dtype) if dtype is E4M3 else sums.to(dtype)


def assert_exact(C, *operands, bias=None) -> None:
    """Equal to the last bit, for small integers and scales that are powers of two."""
    exact, _ = product(*operands, bias)
    wrong = (C.float() != rounded(exact, C.dtype).float()).nonzero()
    if len(wrong):
        at = tuple(wrong[0].tolist())
        right = rounded(exact, C.dtype)[at].item()
        raise AssertionError(f"{len(wrong)} elements differ, first at {at}: {C[at].item()} instead of {right}")


def worst_share(C, *operands) -> float:
    """The greatest error as a share of what it may be; NaN where there is one."""
    exact, magnitude = product(*operands)
    relative, least = ROUNDOFF[C.dtype]
    allowed = (relative * exact.abs() + SLACK[C.device.type] * magnitude) * (1 + relative) + least
    value = exact.clamp(-448, 448) if C.dtype is E4M3 else exact
    return ((C.double() - value).abs() / allowed).max().item()


def sparse_integers(*shape, device, seed: int = 0):
    """e4m3 integers in [-2, 2], three quarters zero: any order of summation gives the same bits."""
    generator = torch.Generator().manual_seed(seed + sum(shape))
    values = torch.randint(-2, 3, shape, generator=generator) * (torch.rand(shape, generator=generator) < 0.25)
    return values.float().to(E4M3).to(device)


def powers_of_two(shape, device, seed: int = 0):
    """From 1/4 to 4, so that sums of integers stay exact in float32."""
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return (2.0 ** torch.randint(-2, 3, shape, generator=generator)).to(device)
