"""combine: rows of a token's experts, weighted and summed; exact for integers, in the order of the slots."""

import pytest

torch = pytest.importorskip("torch")

import gg_runtime  # noqa: E402
from capture import captured  # noqa: E402

DTYPES = [torch.float16, torch.bfloat16]
WEIGHTS = [None, torch.float32, torch.float16, torch.bfloat16]
NAN = float("nan")


def operands(tokens, k, hidden, rows, dtype, weights=torch.float32):
    """Integers and powers of two: every order of summation gives the same bits. A quarter of the slots is dropped."""
    y = torch.randint(-4, 5, (rows, hidden), device="cuda").to(dtype)
    inverse = torch.randint(-rows // 4, rows, (tokens, k), device="cuda", dtype=torch.int32)
    factors = None if weights is None else (2.0 ** torch.randint(-2, 3, (tokens, k), device="cuda")).to(weights)
    return y, inverse, factors


def expected(y, inverse, weights=None, add=None, scale=1.0):
    sums = torch.zeros(len(inverse), y.shape[1], device="cuda", dtype=torch.float64)
    for j in range(inverse.shape[1]):
        kept = (inverse[:, j] >= 0) & (inverse[:, j] < len(y))
        row = y[inverse[kept, j].long()].double()
        sums[kept] += row if weights is None else weights[kept, j].double()[:, None] * row
    sums *= scale
    return (sums if add is None else sums + add.double()).to(y.dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("weights", WEIGHTS, ids=str)
@pytest.mark.parametrize(
    ("tokens", "k", "hidden"),
    [(1, 1, 8), (64, 8, 2048), (37, 3, 1000), (5, 16, 1025), (3, 5, 7), (4, 0, 64), (0, 2, 64), (2, 2, 0), (300, 4, 2880)],
)
def test_sums_are_exact(tokens, k, hidden, weights, dtype):
    y, inverse, factors = operands(tokens, k, hidden, 100, dtype, weights)
    out = torch.full((tokens, hidden), NAN, device="cuda", dtype=dtype)
    assert gg_runtime.combine(y, inverse, factors, out=out) is out
    assert torch.equal(out, expected(y, inverse, factors))
    assert torch.equal(gg_runtime.combine(y, inverse, factors), out)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_sum_is_in_the_order_of_the_slots(dtype):
    """In float32, 2^24 + 1 + 1 is 2^24 and 1 + 1 + 2^24 is not: bf16 and fp16 rows with weights that make such terms."""
    y = torch.ones(3, 64, device="cuda", dtype=dtype)
    big, one = 2.0**24, 1.0
    orders = torch.tensor([[0, 1, 2]] * 2, device="cuda", dtype=torch.int32)
    weights = torch.tensor([[big, one, one], [one, one, big]], device="cuda")
    sums = gg_runtime.combine(y, orders, weights, scale=2.0**-24, add=torch.full((2, 64), -1.0, device="cuda", dtype=dtype))
    assert sums[0].eq(0).all() and sums[1].eq(2.0**-23).all()


@pytest.mark.parametrize("offset", [0, 1, 8])
@pytest.mark.parametrize("pad", [0, 3, 8])
def test_rows_lie_anywhere(pad, offset):
    y, inverse, factors = operands(40, 4, 256, 90, torch.bfloat16)
    wide = torch.full((90, 256 + offset + pad), NAN, device="cuda", dtype=torch.bfloat16)
    target = torch.full((40, 256 + offset + pad), 5.0, device="cuda", dtype=torch.bfloat16)
    view, out = (array[:, offset : offset + 256] for array in (wide, target))
    view.copy_(y)
    gg_runtime.combine(view, inverse, factors, out=out)
    assert torch.equal(out, expected(y, inverse, factors))
    assert target[:, :offset].eq(5).all() and target[:, offset + 256 :].eq(5).all()


def test_what_is_dropped_is_not_read():
    y, inverse, factors = operands(200, 8, 96, 64, torch.bfloat16)
    want = expected(y, inverse, factors)
    used = torch.zeros(64, dtype=torch.bool, device="cuda")
    used[inverse[inverse >= 0].long()] = True
    y[~used], factors[inverse < 0] = NAN, NAN
    assert torch.equal(gg_runtime.combine(y, inverse, factors), want)


def test_inverse_may_hold_anything():
    y, inverse, factors = operands(500, 6, 128, 50, torch.float16)
    inverse.copy_(torch.randint(-(2**31), 2**31 - 1, inverse.shape, device="cuda"))
    inverse[::2] = torch.randint(45, 60, inverse[::2].shape, device="cuda", dtype=torch.int32)
    assert torch.equal(gg_runtime.combine(y, inverse, factors), expected(y, inverse, factors))


def test_a_shared_experts_rows_are_added_in_place_too():
    y, inverse, factors = operands(30, 2, 320, 60, torch.bfloat16)
    add = torch.randint(-3, 4, (30, 320), device="cuda").bfloat16()
    want = expected(y, inverse, factors, add, 0.5)
    assert torch.equal(gg_runtime.combine(y, inverse, factors, add=add, scale=0.5), want)
    gg_runtime.combine(y, inverse, factors, add=add, scale=0.5, out=add)
    assert torch.equal(add, want)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_errors_are_those_of_one_rounding(dtype):
    torch.manual_seed(0)
    y = torch.randn(4096, 1024, device="cuda").to(dtype)
    inverse = torch.randint(0, 4096, (512, 8), device="cuda", dtype=torch.int32)
    weights = torch.rand(512, 8, device="cuda")
    out, exact = gg_runtime.combine(y, inverse, weights).double(), expected(y.double(), inverse, weights)
    magnitude = expected(y.double().abs(), inverse, weights)
    assert ((out - exact).abs() <= exact.abs() * torch.finfo(dtype).eps / 2 + magnitude * 1e-6 + 1e-7).all()


def test_bits_are_the_same_again_in_a_graph_and_for_a_token_alone():
    y = torch.randn(900, 768, device="cuda").bfloat16()
    inverse = torch.randint(0, 900, (300, 8), device="cuda", dtype=torch.int32)
    weights = torch.rand(300, 8, device="cuda")
    first = gg_runtime.combine(y, inverse, weights)
    graph, replayed = captured(lambda: gg_runtime.combine(y, inverse, weights))
    replayed.fill_(NAN)
    graph.replay()
    assert torch.equal(replayed, first)
    assert torch.equal(gg_runtime.combine(y, inverse[7:8], weights[7:8])[0], first[7])


def test_sums_past_two_gigabytes():
    y = torch.empty(300000, 4096, device="cuda", dtype=torch.bfloat16)
    y[299990:] = torch.randint(-4, 5, (10, 4096), device="cuda").bfloat16()
    inverse = torch.randint(299990, 300000, (290000, 2), device="cuda", dtype=torch.int32)
    out = gg_runtime.combine(y, inverse)
    picked = torch.tensor([0, 131072, 262144, 289999], device="cuda")
    assert torch.equal(out[picked], expected(y, inverse[picked]))
