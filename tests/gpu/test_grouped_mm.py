"""grouped_mm on every split of rows into groups, and at the smallest sizes."""

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

import gg_runtime  # noqa: E402
from oracle import fill_normal, fill_sparse_integers  # noqa: E402
from ragged_cases import as_offs, operands, random_sizes  # noqa: E402
from ragged_oracle import assert_close, assert_exact  # noqa: E402

DTYPES = [torch.float16, torch.bfloat16]
SPLITS = {
    "uniform": [40] * 8,
    "tiles": [128] * 4,
    "skewed": [500, 100, 20, 5, 1, 1, 0, 1],
    "one holds all": [0, 0, 300, 0, 0],
    "first empty": [0, 33, 67],
    "middle empty": [33, 0, 0, 67],
    "last empty": [33, 67, 0],
    "every second empty": [17, 0] * 9,
    "all empty": [0] * 6,
    "one row each": [1] * 37,
    "primes": [2, 3, 5, 7, 11, 101, 131, 257],
    "long": [2000, 1, 999],
}
COUNTS = [1, 2, 31, 32, 33, 127, 128, 129, 255, 256, 257, 512, 1024]


@pytest.mark.parametrize("transposed", [False, True], ids=["KN", "NK"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("split", SPLITS)
def test_splits(split, dtype, transposed):
    for tail in (0, 1, 150):
        A, B, offs, out = operands(SPLITS[split], 136, 200, dtype, tail, transposed, fill_normal)
        assert gg_runtime.grouped_mm(A, B, offs=offs, out=out) is out
        assert_close(out, A, B, offs)
        fill_sparse_integers([A, B])
        assert_exact(gg_runtime.grouped_mm(A, B, offs=offs), A, B, offs)


@pytest.mark.parametrize("sizes", [(64, 64), (33, 57)], ids=["aligned", "odd"])
@pytest.mark.parametrize("groups", COUNTS)
def test_number_of_groups(groups, sizes):
    n, k = sizes
    for occupied in (1.0, 0.1):
        split = random_sizes(groups, 2 * groups + 7, seed=groups, occupied=occupied)
        A, B, offs, out = operands(split, n, k, tail=3)
        gg_runtime.grouped_mm(A, B, offs=offs, out=out)
        assert_exact(out, A, B, offs)


@pytest.mark.parametrize("k", [1, 7, 8, 16, 65])
@pytest.mark.parametrize("n", [1, 2, 7, 8, 9, 24, 129])
def test_small_n_and_k(n, k):
    A, B, offs, out = operands([1, 0, 5, 64, 3], n, k, tail=2)
    gg_runtime.grouped_mm(A, B, offs=offs, out=out)
    assert_exact(out, A, B, offs)


@pytest.mark.parametrize("n", [1, 8, 200])
def test_products_of_depth_0_are_zero(n):
    A, B, offs, out = operands([3, 0, 130], n, 0, tail=4)
    gg_runtime.grouped_mm(A, B, offs=offs, out=out)
    assert bool((out == 0).all())
    # What an allocator hands out first is often zero: leave NaN where the output will be.
    out.fill_(float("nan"))
    del out
    assert bool((gg_runtime.grouped_mm(A, B, offs=offs) == 0).all())


def test_no_groups_give_zeros():
    A, B, offs, out = operands([], 40, 24, tail=70)
    assert bool((gg_runtime.grouped_mm(A, B, offs=offs, out=out) == 0).all())


@pytest.mark.parametrize("sizes, n", [([0, 0], 16), ([5, 3], 0), ([], 8)], ids=["no rows", "no columns", "no groups"])
def test_empty_outputs(sizes, n):
    A, B, offs, _ = operands(sizes, n, 16)
    C = gg_runtime.grouped_mm(A, B, offs=offs)
    assert C.shape == (sum(sizes), n) and C.dtype == A.dtype and C.device == A.device


def test_new_outputs_are_row_major_and_start_on_16_bytes():
    A, B, offs, _ = operands([5, 9], 33, 24)
    C = gg_runtime.grouped_mm(A, B, offs=offs, out_dtype=torch.bfloat16)
    assert C.stride() == (33, 1) and C.data_ptr() % 16 == 0 and not C.requires_grad


def test_one_hot_rows_pick_rows_of_their_groups_matrix():
    sizes, k = [70, 0, 1, 122], 193
    picks = torch.randint(0, k, (sum(sizes),), device="cuda")
    A = torch.nn.functional.one_hot(picks, k).to(torch.bfloat16)
    B = torch.randn(4, k, 75, device="cuda", dtype=torch.bfloat16)
    group = torch.repeat_interleave(torch.arange(4), torch.tensor(sizes)).cuda()
    assert torch.equal(gg_runtime.grouped_mm(A, B, offs=as_offs(sizes)), B[group, picks])


def test_infinity_and_nan_stay_in_their_rows_and_groups():
    A, B = torch.ones(90, 56, device="cuda").half(), torch.ones(4, 56, 88, device="cuda").half()
    A[3, 7], A[64, 0] = float("inf"), float("nan")
    B[1] = float("nan")  # of a group without rows
    A[85:] = float("nan")  # past the last group
    C = gg_runtime.grouped_mm(A, B, offs=as_offs([33, 0, 40, 12]))
    assert bool((C[3] == float("inf")).all()) and bool(C[64].isnan().all()) and bool((C[85:] == 0).all())
    rest = [row for row in range(85) if row not in (3, 64)]
    assert bool((C[rest] == 56).all())


@settings(max_examples=80)
@given(
    sizes=st.lists(st.one_of(st.integers(0, 8), st.integers(0, 300)), min_size=1, max_size=20),
    n=st.one_of(st.integers(1, 20), st.integers(1, 33).map(lambda x: 8 * x)),
    k=st.one_of(st.integers(0, 20), st.integers(1, 40).map(lambda x: 8 * x)),
    tail=st.sampled_from([0, 0, 1, 64, 200]),
    dtype=st.sampled_from(DTYPES),
    transposed=st.booleans(),
)
def test_any_form(sizes, n, k, tail, dtype, transposed):
    A, B, offs, out = operands(sizes, n, k, dtype, tail, transposed)
    gg_runtime.grouped_mm(A, B, offs=offs, out=out)
    assert_exact(out, A, B, offs)


@settings(max_examples=60)
@given(st.lists(st.one_of(st.integers(-3, 103), st.integers(-(2**31), 2**31 - 1)), min_size=1, max_size=40))
def test_any_offs(ends):
    A, B, _, out = operands([100] + [0] * (len(ends) - 1), 40, 48)
    offs = torch.tensor(ends, dtype=torch.int32, device="cuda")
    gg_runtime.grouped_mm(A, B, offs=offs, out=out)
    assert_exact(out, A, B, offs)
