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


def stack_shapes(mode: str, groups: int, m: int, n: int, k: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Of scale_a and of scale_b of a product of stacks; "tensor" besides."""
    if mode == "tensor":
        return (1,), (groups,)
    of_a, of_b = shapes(mode, m, groups, n, k)
    return (groups, *of_a), of_b


def spread(scale_a, scale_b, n: int, k: int):
    """The factor of each element of A [rows, K], and of B [E, K, N], in float64."""
    scale_a, scale_b = scale_a.double(), scale_b.double()
    if scale_b.ndim == 2:
        return scale_a[:, None].expand(-1, k), scale_b[:, None].expand(-1, k, -1)
    of_a = scale_a.repeat_interleave(BLOCK, 1)[:, :k]
    of_b = scale_b.repeat_interleave(BLOCK, 1)[:, :n].repeat_interleave(BLOCK, 2)[:, :, :k]
    return of_a, of_b.mT


def group_ends(offs, rows: int) -> list[int]:
    """Where each group ends: an offset before its predecessor makes an empty group, one past the rows ends there."""
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
    for group, end in enumerate(group_ends(offs, A.shape[0])):
        rows = slice(start, end)
        a, b = A[rows].double() * of_a[rows], B[group].double() * of_b[group]
        exact[rows], magnitude[rows] = a @ b, a.abs() @ b.abs()
        if bias is not None:
            exact[rows] += bias[group].double()
        start = end
    return exact, magnitude


def clamped(counts, groups: int, m: int) -> list[int]:
    """How many rows of each group of a stack are computed: all without counts, and no more than there are."""
    return [m] * groups if counts is None else [min(max(count, 0), m) for count in counts.tolist()]


def stack_product(A, B, counts, scale_a, scale_b, bias=None):
    """[E, M, N] in float64, and the sums of magnitudes; NaN in rows that are not computed. One scale for A goes too."""
    groups, m, n = len(A), A.shape[1], B.shape[2]
    if scale_b.ndim < 2:
        scale_a, scale_b = scale_a.expand(groups, m), scale_b.expand(groups)[:, None].expand(-1, n)
    exact = torch.full((groups, m, n), float("nan"), dtype=torch.float64, device=A.device)
    magnitude = exact.clone()
    for group, count in enumerate(clamped(counts, groups, m)):
        one = slice(group, group + 1)
        exact[group, :count], magnitude[group, :count] = product(
            A[group, :count], B[one], torch.tensor([count]), scale_a[group, :count], scale_b[one],
            None if bias is None else bias[one],
        )  # fmt: skip
    return exact, magnitude


def list_shapes(mode: str, m: int, n: int, k: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Of scale_a[i] and of scale_b[i] of a list."""
    of_a, of_b = shapes(mode, m, 1, n, k)
    return of_a, of_b[1:]


def of_one(A, B, scale_a, scale_b) -> tuple:
    """A product of a list, as one of ragged rows with one group."""
    return A, B[None], torch.tensor([len(A)]), scale_a, scale_b[None]


def rounded(exact, dtype):
    """As kernels round float32 sums: what e4m3 cannot hold becomes its largest value."""
    sums = exact.float()
    return sums.clamp(-448, 448).to(dtype) if dtype is E4M3 else sums.to(dtype)


def assert_exact(C, *operands, bias=None) -> None:
    """Equal to the last bit, for small integers and scales that are powers of two."""
    exact, _ = product(*operands, bias)
    _assert_equal(C, rounded(exact, C.dtype))


def assert_stack_exact(C, *operands, bias=None, as_it_was: float = 0.0) -> None:
    """The same for stacks, whose rows that are not computed hold `as_it_was`."""
    exact, _ = stack_product(*operands, bias)
    _assert_equal(C, rounded(exact.nan_to_num(nan=as_it_was), C.dtype))


def _assert_equal(C, right) -> None:
    wrong = (C.float() != right.float()).nonzero()
    if len(wrong):
        at = tuple(wrong[0].tolist())
        raise AssertionError(
            f"{len(wrong)} elements differ, first at {at}: {C[at].item()} instead of {right[at].item()}"
        )


def worst_share(C, *operands) -> float:
    """The greatest error as a share of what it may be; NaN where there is one."""
    return _worst_share(C, *product(*operands))


def worst_stack_share(C, *operands) -> float:
    """The same for stacks: of rows that are computed."""
    exact, magnitude = stack_product(*operands)
    computed = ~exact.isnan()
    return _worst_share(C[computed], exact[computed], magnitude[computed])


def _worst_share(C, exact, magnitude) -> float:
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
