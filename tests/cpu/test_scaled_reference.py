"""grouped_mm on the CPU with scales by row and column, and by block."""

import pytest

torch = pytest.importorskip("torch")

import gg_runtime  # noqa: E402
from scaled_oracle import (  # noqa: E402
    E4M3,
    MODES,
    assert_exact,
    powers_of_two,
    shapes,
    sparse_integers,
    worst_share,
)

OFFS = torch.tensor([5, 5, 17, 20], dtype=torch.int32)


def operands(mode, n=200, k=300, rows=24):
    A, B = sparse_integers(rows, k, device="cpu"), sparse_integers(4, n, k, device="cpu").mT
    return A, B, [powers_of_two(shape, "cpu") for shape in shapes(mode, rows, 4, n, k)]


def scaled(A, B, of, **others):
    return gg_runtime.grouped_mm(A, B, offs=OFFS, scale_a=of[0], scale_b=of[1], **others)


@pytest.mark.parametrize("out_dtype", [torch.float16, torch.bfloat16, torch.float32, E4M3], ids=str)
@pytest.mark.parametrize("n, k", [(200, 300), (128, 128), (1, 1), (129, 257)])
@pytest.mark.parametrize("mode", MODES)
def test_products_are_scaled_in_float32_and_rounded_once(mode, n, k, out_dtype):
    A, B, of = operands(mode, n, k)
    C = scaled(A, B, of, out_dtype=out_dtype)
    assert C.dtype == out_dtype
    assert_exact(C, A, B, OFFS, *of)


@pytest.mark.parametrize("mode", MODES)
def test_errors_against_float64(mode):
    A, B = (torch.randn(24, 700) / 4).to(E4M3), (torch.randn(4, 200, 700) / 4).to(E4M3).mT
    of = [0.5 + torch.rand(shape) for shape in shapes(mode, 24, 4, 200, 700)]
    assert worst_share(scaled(A, B, of, out_dtype=torch.float32), A, B, OFFS, *of) <= 1


@pytest.mark.parametrize("mode", MODES)
def test_scales_with_any_strides(mode):
    A, B, of = operands(mode)
    turned = [one.mT.contiguous().mT if one.ndim > 1 else one for one in of]
    apart = [torch.stack([one, torch.full_like(one, float("nan"))], -1).flatten(-2)[..., ::2] for one in of]
    for lies in (turned, apart):
        assert_exact(scaled(A, B, lies, out_dtype=torch.float32), A, B, OFFS, *of)


@pytest.mark.parametrize("mode", MODES)
def test_a_bias_is_added_to_the_scaled_sum_and_a_plan_reads_the_scales_of_the_moment(mode):
    A, B, of = operands(mode)
    bias = torch.randint(-9, 10, (4, 200)).bfloat16()
    plan = gg_runtime.Plan(A, B, offs=OFFS, bias=bias, scale_a=of[0], scale_b=of[1])
    for turn in range(2):
        for one in of:
            one.copy_(powers_of_two(one.shape, "cpu", seed=turn))
        assert_exact(plan.run(), A, B, OFFS, *of, bias=bias)
        assert_exact(scaled(A, B, of, bias=bias), A, B, OFFS, *of, bias=bias)


@pytest.mark.parametrize("mode", MODES)
def test_rows_past_the_last_end_are_zeros_whatever_their_scales(mode):
    A, B, of = operands(mode)
    of[0][20:] = float("nan")
    C = scaled(A, B, of)
    assert not C[20:].any() and not C.isnan().any()


@pytest.mark.parametrize("mode", MODES)
def test_sizes_of_zero(mode):
    for rows, n, k in ((0, 96, 128), (24, 0, 128), (24, 96, 0)):
        A, B, of = operands(mode, n, k, rows)
        C = scaled(A, B, of)
        assert C.shape == (rows, n) and not C.any()


def test_one_element_of_any_rank_is_a_scale_of_all():
    A, B, _ = operands("row")
    C = scaled(A, B, (torch.tensor([[2.0]]), torch.tensor([[[0.5]]])), out_dtype=torch.float32)
    assert torch.equal(C, gg_runtime.grouped_mm(A, B, offs=OFFS, out_dtype=torch.float32))
