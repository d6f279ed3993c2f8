"""A bias of each group is added to its rows before they are rounded, and to no other row."""

import pytest

torch = pytest.importorskip("torch")

import gg_runtime  # noqa: E402
from cases import RAGGED_ARTIFACTS, representatives  # noqa: E402
from oracle import fill_normal, fill_sparse_integers  # noqa: E402
from ragged_cases import as_offs, forced, operands  # noqa: E402
from ragged_oracle import assert_exact, group_rows  # noqa: E402

SIZES = [0, 33, 1, 0, 130, 7, 0]
E, TAIL = len(SIZES), 9

BIASES = {
    "contiguous": lambda n: integers(E, n),
    "transposed": lambda n: integers(n, E).t(),
    "columns of a wider one": lambda n: integers(E, n + 11)[:, 3 : 3 + n],
    "every second row": lambda n: integers(2 * E, n)[::2],
    "every third column": lambda n: integers(E, 3 * n)[:, ::3],
    "one row for all groups": lambda n: integers(1, n).expand(E, n),
    "one column, repeated": lambda n: integers(E, 1).expand(E, n),
}


def integers(rows, columns):
    return torch.randint(-9, 10, (rows, columns), device="cuda").to(torch.bfloat16)


@pytest.mark.parametrize("n, k", [(136, 96), (75, 61), (8, 0)], ids=["aligned", "odd", "depth 0"])
@pytest.mark.parametrize("kind", BIASES)
def test_any_strides(kind, n, k):
    A, B, offs, out = operands(SIZES, n, k, tail=TAIL)
    bias = BIASES[kind](n)
    gg_runtime.grouped_mm(A, B, offs=offs, bias=bias, out=out)
    assert_exact(out, A, B, offs, bias=bias)


@pytest.mark.parametrize("artifact", representatives("bf16", RAGGED_ARTIFACTS), ids=lambda artifact: artifact["name"])
def test_each_kernel(artifact):
    A, B, offs, out = operands(SIZES, 136, 96, tail=-sum(SIZES) % 8)  # whole 16 bytes of rows
    if artifact["layout"][0] == "t":
        A = A.t().contiguous().t()
    if artifact["layout"] in ("nt", "tt"):
        B = B.mT.contiguous().mT
    bias = integers(E, 136)
    forced(artifact, A, B, offs=offs, bias=bias, out=out)
    assert_exact(out, A, B, offs, bias=bias)


def test_it_is_added_before_the_sum_is_rounded():
    """257 is no bfloat16, 257 - 256 is."""
    A, B = torch.ones(4, 257, device="cuda").bfloat16(), torch.ones(1, 257, 64, device="cuda").bfloat16()
    bias = torch.full((1, 64), -256.0, device="cuda").bfloat16()
    assert bool((gg_runtime.grouped_mm(A, B, offs=as_offs([4]), bias=bias) == 1).all())


def test_rows_past_the_groups_and_groups_without_rows_take_none():
    A, B, offs, out = operands([0, 5, 0], 40, 24, tail=6)
    bias = torch.full((3, 40), float("nan"), device="cuda").bfloat16()
    bias[1] = 3
    gg_runtime.grouped_mm(A, B, offs=offs, bias=bias, out=out)
    assert bool((out[5:] == 0).all()) and not bool(out.isnan().any())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_it_is_as_exact_as_torch(dtype):
    A, B, offs, out = operands(SIZES, 264, 512, dtype, fill=fill_normal)
    bias = torch.randn(E, 264, device="cuda", dtype=dtype)
    gg_runtime.grouped_mm(A, B, offs=offs, bias=bias, out=out)
    for group, rows in group_rows(offs, A.shape[0]):
        exact = A[rows].double() @ B[group].double() + bias[group].double()
        theirs = torch.addmm(bias[group], A[rows], B[group])
        error, allowed = ((C.double() - exact).abs().max().item() for C in (out[rows], theirs))
        assert error <= 2 * allowed + 1e-5, f"group {group}: {error} against {allowed} of torch.addmm"


def test_a_garbage_offs_with_a_bias():
    A, B, _, out = operands([60, 40], 40, 24)
    fill_sparse_integers([A, B], seed=3)
    bias = integers(2, 40)
    for ends in ([-5, 2**31 - 1], [70, 30], [-1, -1], [101, 102]):
        offs = torch.tensor(ends, dtype=torch.int32, device="cuda")
        out.fill_(float("nan"))
        gg_runtime.grouped_mm(A, B, offs=offs, bias=bias, out=out)
        assert_exact(out, A, B, offs, bias=bias)
