"""grouped_mm reads and writes its operands where they lie, in every order of strides."""

import functools
import itertools
import random

import pytest

torch = pytest.importorskip("torch")

import gg_runtime  # noqa: E402
import views  # noqa: E402
from oracle import fill_sparse_integers, sparse_integers  # noqa: E402
from ragged_cases import as_offs  # noqa: E402
from ragged_oracle import assert_exact  # noqa: E402

SIZES = [30, 0, 1, 77]
E, TAIL = len(SIZES), 5
ROWS = sum(SIZES) + TAIL
SHAPES = {"odd": (131, 93), "aligned": (136, 96)}  # N, K
base = functools.partial(sparse_integers, dtype=torch.bfloat16)


def permuted(order):
    """[E, K, N] whose memory is ordered by `order`, outermost first."""

    def view(*shape):
        places = [order.index(axis) for axis in range(3)]
        return base(*(shape[axis] for axis in order)).permute(places)

    return view


OUTPUTS = views.distinct(base)
MATRICES = {**OUTPUTS, **views.repeated(base)}
WEIGHTS = {
    **{f"order {order}": permuted(order) for order in itertools.permutations(range(3))},
    "columns of wider ones": lambda e, k, n: base(e, k, n + 40)[:, :, 24 : 24 + n],
    "rows of taller ones": lambda e, k, n: base(e, k + 16, n)[:, 8 : 8 + k],
    "columns of wider ones, transposed": lambda e, k, n: base(e, n + 40, k).mT[:, :, 24 : 24 + n],
    "rows of taller ones, transposed": lambda e, k, n: base(e, n, k + 11).mT[:, 3 : 3 + k],
    "every second group": lambda e, k, n: base(2 * e, k, n)[1::2],
    "every second group, transposed": lambda e, k, n: base(2 * e, n, k).mT[::2],
    "every second column": lambda e, k, n: base(e, k, 2 * n)[:, :, ::2],
    "every third row, transposed": lambda e, k, n: base(e, n, 3 * k).mT[:, ::3],
    "offset by one element": lambda e, k, n: base(e * k * n + 1)[1:].view(e, k, n),
    "one matrix for all groups": lambda e, k, n: base(1, k, n).expand(e, k, n),
    "one matrix for all groups, transposed": lambda e, k, n: base(1, n, k).mT.expand(e, k, n),
    "one element for all": lambda e, k, n: torch.full((1, 1, 1), 2, device="cuda").bfloat16().expand(e, k, n),
}


def shapes():
    return pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)


@shapes()
@pytest.mark.parametrize("b", WEIGHTS)
@pytest.mark.parametrize("a", MATRICES)
def test_inputs(a, b, shape):
    n, k = shape
    A, B, offs = MATRICES[a](ROWS, k), WEIGHTS[b](E, k, n), as_offs(SIZES)
    assert A.shape == (ROWS, k) and B.shape == (E, k, n)
    assert_exact(gg_runtime.grouped_mm(A, B, offs=offs), A, B, offs)


@shapes()
@pytest.mark.parametrize("b", ["order (0, 1, 2)", "order (0, 2, 1)"], ids=["KN", "NK"])
@pytest.mark.parametrize("c", OUTPUTS)
def test_outputs(c, b, shape):
    n, k = shape
    A, B, C, offs = base(ROWS, k), WEIGHTS[b](E, k, n), OUTPUTS[c](ROWS, n), as_offs(SIZES)
    whole = C._base if C._base is not None else C
    untouched = torch.full_like(whole, -7)
    whole.copy_(untouched)
    assert gg_runtime.grouped_mm(A, B, offs=offs, out=C) is C
    assert_exact(C, A, B, offs)
    C.fill_(-7)
    assert torch.equal(whole, untouched)


def test_columns_of_two_outputs_may_interleave():
    A, B, offs, whole = base(ROWS, 64), base(E, 64, 128), as_offs(SIZES), base(ROWS, 256)
    left, right = whole[:, :128], whole[:, 128:]
    for out, b in ((left, B), (right, B.flip(2))):
        out.fill_(float("nan"))
        gg_runtime.grouped_mm(A, b, offs=offs, out=out)
    assert_exact(left, A, B, offs)
    assert_exact(right, A, B.flip(2), offs)


@pytest.mark.parametrize("n, k", [(1, 64), (64, 1), (1, 1), (64, 64)])
@pytest.mark.parametrize("rows, groups", [(1, 1), (1, 3), (40, 1)])
def test_the_stride_of_a_dimension_of_one_is_never_used(rows, groups, n, k):
    A, B = base(rows, k) + 3, base(groups, k, n) + 3  # no zeros: one element may be all there is
    offs = as_offs([rows] + [0] * (groups - 1))
    strange = [
        array.as_strided(array.shape, [3 if size == 1 else step for size, step in zip(array.shape, array.stride())])
        for array in (A, B)
    ]
    assert_exact(gg_runtime.grouped_mm(*strange, offs=offs), A, B, offs)


def test_forms_that_differ_in_one_fact_take_turns():
    """A choice that is remembered under too few facts would be taken for a form that it does not fit."""
    n, k = SHAPES["aligned"]
    offs, other = as_offs(SIZES), as_offs([ROWS, 0, 0, 0])
    names = ("contiguous", "transposed", "offset by one element", "every second column")
    A = [MATRICES[name](ROWS, k) for name in names]
    B = [WEIGHTS[name](E, k, n) for name in ("order (0, 1, 2)", "order (0, 2, 1)", "offset by one element")]
    C = [OUTPUTS[name](ROWS, n) for name in names[:3]]
    forms = list(itertools.product(A, B, [None, *C], (offs, other)))
    forms += [(a.half(), b.half(), None, offs) for a, b in itertools.product(A, B)]
    random.Random(0).shuffle(forms)
    for a, b, c, ends in forms:
        if c is not None:
            c.fill_(float("nan"))
        assert_exact(gg_runtime.grouped_mm(a, b, offs=ends, out=c), a, b, ends)


def random_strides(shape, numbers):
    """Distinct elements, in any order of dimensions, with gaps and steps."""
    order = list(range(len(shape)))
    if numbers.random() < 0.5:
        numbers.shuffle(order)
    strides, reach = [0] * len(shape), numbers.choice([1, 1, 1, 2])
    for axis in reversed(order):
        strides[axis] = reach
        reach = reach * max(shape[axis], 1) + numbers.choice([0, 0, 1, 8, 40])
    return strides


@pytest.mark.parametrize("seed", range(40))
def test_random_views(seed, arenas):
    numbers = random.Random(seed)
    dtype = numbers.choice([torch.float16, torch.bfloat16])
    groups, tail = numbers.choice([1, 4, 40]), numbers.choice([0, 3])
    sizes = [numbers.choice([0, 1, 8, 33, 64, 129]) for _ in range(groups)]
    rows, (n, k) = sum(sizes) + tail, numbers.choices([1, 8, 33, 64, 100, 128, 200], k=2)
    inputs, outputs = arenas
    shapes = (inputs, (rows, k)), (inputs, (groups, k, n)), (outputs, (rows, n))
    A, B, C = (
        arena.array(shape, dtype, random_strides(shape, numbers), numbers.choice([0, 0, 1, 4, 8]))
        for arena, shape in shapes
    )
    fill_sparse_integers([A, B], seed)
    outputs.poison()
    before_inputs, before_outputs = inputs.snapshot(), outputs.snapshot()
    offs = as_offs(sizes)
    gg_runtime.grouped_mm(A, B, offs=offs, out=C)
    assert_exact(C, A, B, offs)
    assert outputs.stray_writes(before_outputs) == 0
    assert inputs.unchanged(before_inputs)
