"""Lists of every length, with empty groups, in any order."""

import random

import pytest

torch = pytest.importorskip("torch")

import gg_runtime  # noqa: E402
from cases import row_major  # noqa: E402
from oracle import assert_close, assert_exact, fill_normal, fill_sparse_integers  # noqa: E402

DTYPES = [torch.float16, torch.bfloat16]


def random_shapes(count: int, seed: int, largest: int = 150) -> list[tuple[int, int, int]]:
    numbers = random.Random(seed)
    return [tuple(numbers.randint(1, largest) for _ in range(3)) for _ in range(count)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("count", [1, 2, 3, 8, 31, 32, 33, 64, 257, 1000])
def test_number_of_groups(count, dtype):
    A, B = row_major(random_shapes(count, seed=count), dtype)
    assert_exact(gg_runtime.group_gemm(A, B), A, B)


@pytest.mark.parametrize("count", [4, 40])
@pytest.mark.parametrize("multiple", [1, 8])
def test_empty_groups_between_others(count, multiple, arenas):
    sizes = [(0, 5, 7), (3, 0, 5), (5, 7, 0), (0, 0, 0), (9, 4, 6), (1, 0, 0), (0, 3, 0), (2, 3, 0)] * (count // 4)
    shapes = [tuple(multiple * size for size in shape) for shape in sizes]
    inputs, outputs = arenas
    A = [inputs.matrix(m, k, torch.float16) for m, n, k in shapes]
    B = [inputs.matrix(k, n, torch.float16) for m, n, k in shapes]
    C = [outputs.matrix(m, n, torch.float16) for m, n, k in shapes]
    fill_sparse_integers([*A, *B])
    outputs.poison()
    before = outputs.snapshot()
    assert_exact(gg_runtime.group_gemm(A, B, out=C), A, B)
    assert outputs.stray_writes(before) == 0


@pytest.mark.parametrize("empty", ["M", "N", "K"])
def test_all_groups_empty(empty):
    # What an allocator hands out first is often zero: leave NaN where the outputs will be.
    dirty = torch.full((64, 64), float("nan"), device="cuda", dtype=torch.float16)
    del dirty
    shape = {"M": (0, 64, 64), "N": (64, 0, 64), "K": (64, 64, 0)}[empty]
    A, B = row_major([shape] * 3)
    assert_exact(gg_runtime.group_gemm(A, B), A, B)
    plan = gg_runtime.Plan(A, B)
    assert_exact(plan.run(), A, B)
    assert (plan.variant == "") == (empty != "K")


def test_no_groups():
    assert gg_runtime.group_gemm([], []) == []
    assert gg_runtime.Plan([], []).run() == []


@pytest.mark.parametrize("count", [7, 70])
def test_the_order_of_the_groups_changes_no_bit(count):
    A, B = row_major(random_shapes(count, seed=1), torch.float16, fill_normal)
    order = random.Random(2).sample(range(count), count)
    straight = gg_runtime.group_gemm(A, B)
    shuffled = gg_runtime.group_gemm([A[i] for i in order], [B[i] for i in order])
    assert all(torch.equal(shuffled[place], straight[i]) for place, i in enumerate(order))


@pytest.mark.parametrize(
    "shapes",
    [[(4096, 64, 32), (1, 1, 5000), (33, 2048, 7)], [(1024,) * 3, (512,) * 3, (256,) * 3]],
    ids=["odd", "even"],
)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_unlike_sizes_in_one_list(shapes, dtype):
    A, B = row_major(shapes, dtype, fill_normal)
    assert_close(gg_runtime.group_gemm(A, B), A, B)


def test_one_hot_rows_pick_rows_of_B_exactly():
    picks = torch.randperm(193, device="cuda")
    A = torch.nn.functional.one_hot(picks, 193).to(torch.bfloat16)
    B = torch.randn(193, 75, device="cuda", dtype=torch.bfloat16)
    (C,) = gg_runtime.group_gemm([A], [B])
    assert torch.equal(C, B[picks])


def test_infinity_and_nan_stay_in_their_rows():
    A, B = torch.ones(70, 50, device="cuda").half(), torch.ones(50, 90, device="cuda").half()
    A[3, 7], A[64, 0] = float("inf"), float("nan")
    (C,) = gg_runtime.group_gemm([A], [B])
    assert bool((C[3] == float("inf")).all()) and bool(C[64].isnan().all())
    rest = [row for row in range(70) if row not in (3, 64)]
    assert bool((C[rest] == 50).all())
