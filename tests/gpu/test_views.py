"""Views are read and written where they lie: transposed, sliced, offset, strided, broadcast."""

import functools
import random

import pytest

torch = pytest.importorskip("torch")

import gg_runtime  # noqa: E402
import views  # noqa: E402
from oracle import assert_exact, fill_sparse_integers, sparse_integers  # noqa: E402

M, N, K = 75, 131, 93
base = functools.partial(sparse_integers, dtype=torch.float16)
DISTINCT = views.distinct(base)
VIEWS = {**DISTINCT, **views.repeated(base)}


@pytest.mark.parametrize("b", VIEWS)
@pytest.mark.parametrize("a", VIEWS)
def test_inputs(a, b):
    A, B = [VIEWS[a](M, K), VIEWS[a](64, 128)], [VIEWS[b](K, N), VIEWS[b](128, 64)]
    # Apart, so that one view's lack of alignment does not decide for the other.
    for i in range(2):
        assert_exact(gg_runtime.group_gemm(A[i : i + 1], B[i : i + 1]), A[i : i + 1], B[i : i + 1])
    assert_exact(gg_runtime.group_gemm(A, B), A, B)


@pytest.mark.parametrize("c", DISTINCT)
@pytest.mark.parametrize("size", [(M, N, K), (64, 128, 256)], ids=["odd", "aligned"])
def test_outputs(c, size):
    m, n, k = size
    A, B, C = base(m, k), base(k, n), VIEWS[c](m, n)
    whole = C._base if C._base is not None else C
    untouched = torch.full_like(whole, -7)
    whole.copy_(untouched)
    returned = gg_runtime.group_gemm([A], [B], out=[C])
    assert returned[0] is C
    assert_exact([C], [A], [B])
    C.fill_(-7)
    assert torch.equal(whole, untouched)


@pytest.mark.parametrize(
    "shape", [(1, N, K), (M, 1, K), (M, N, 1), (1, 1, K), (1, N, 1), (M, 1, 1), (1, 1, 1)], ids=str
)
def test_the_stride_of_a_single_row_or_column_is_never_used(shape):
    m, n, k = shape
    A, B = base(m, k) + 3, base(k, n) + 3  # no zeros: one element may be all there is
    strange = [
        matrix.as_strided(matrix.shape, [3 if size == 1 else step for size, step in zip(matrix.shape, matrix.stride())])
        for matrix in (A, B)
    ]
    (C,) = gg_runtime.group_gemm(strange[:1], strange[1:])
    assert_exact([C], [A], [B])


def random_view(arena, rows, columns, dtype, numbers):
    """Any legal strides: either dimension first, gaps, steps, an odd start."""
    step = numbers.choice([1, 1, 1, 2, 3])
    gap = numbers.choice([0, 0, 1, 8, 40])
    row_major = numbers.random() < 0.6
    leading = max(1, step * (columns if row_major else rows)) + gap
    strides = (leading, step) if row_major else (step, leading)
    return arena.matrix(rows, columns, dtype, strides, numbers.choice([0, 0, 1, 4, 8]))


@pytest.mark.parametrize("count", [1, 5, 48])
@pytest.mark.parametrize("seed", range(12))
def test_random_views(seed, count, arenas):
    numbers = random.Random(100 * seed + count)
    dtype = numbers.choice([torch.float16, torch.bfloat16])
    sizes = [0, 1, 8, 16, 33, 64, 100, 127, 128, 129, 200]
    shapes = [tuple(numbers.choices(sizes, k=3)) for _ in range(count)]
    inputs, outputs = arenas
    A = [random_view(inputs, m, k, dtype, numbers) for m, n, k in shapes]
    B = [random_view(inputs, k, n, dtype, numbers) for m, n, k in shapes]
    C = [random_view(outputs, m, n, dtype, numbers) for m, n, k in shapes]
    fill_sparse_integers([*A, *B], seed)
    outputs.poison()
    before_inputs, before_outputs = inputs.snapshot(), outputs.snapshot()
    gg_runtime.group_gemm(A, B, out=C)
    assert_exact(C, A, B)
    assert outputs.stray_writes(before_outputs) == 0
    assert inputs.unchanged(before_inputs)
