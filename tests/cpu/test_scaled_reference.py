"""grouped_mm on the CPU with scales by row and column, and by block."""

import functools

import pytest

torch = pytest.importorskip("torch")

import gg_runtime  # noqa: E402
from scaled_oracle import (  # noqa: E402
    E4M3,
    MODES,
    assert_exact,
    assert_stack_exact,
    list_shapes,
    of_one,
    powers_of_two,
    shapes,
    sparse_integers,
    stack_shapes,
    worst_share,
    worst_stack_share,
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


ALL_MODES = ("tensor", *MODES)
COUNTS = [None, torch.tensor([10, 0, 3, -5], dtype=torch.int32), torch.tensor([99, 1, 9, 10], dtype=torch.int32)]


def stacks_of(mode, n=200, k=300, m=10):
    A, B = sparse_integers(4, m, k, device="cpu"), sparse_integers(4, n, k, device="cpu").mT
    return A, B, [powers_of_two(shape, "cpu") for shape in stack_shapes(mode, 4, m, n, k)]


@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float32, E4M3], ids=str)
@pytest.mark.parametrize("n, k", [(200, 300), (1, 1), (129, 257), (96, 0)])
@pytest.mark.parametrize("mode", ALL_MODES)
def test_stacks_are_scaled_in_float32_and_rounded_once(mode, n, k, out_dtype):
    A, B, of = stacks_of(mode, n, k)
    bias = torch.randint(-9, 10, (4, n)).to(out_dtype)
    for counts in COUNTS:
        given = {"counts": counts, "scale_a": of[0], "scale_b": of[1]}
        C = gg_runtime.grouped_mm(A, B, out_dtype=out_dtype, **given)
        assert C.dtype == out_dtype
        assert_stack_exact(C, A, B, counts, *of)
        out = torch.full_like(C.float(), -448.0).to(out_dtype)
        plan = gg_runtime.Plan(A, B, out=out, bias=bias, **given)
        assert plan.run() is out
        assert_stack_exact(out, A, B, counts, *of, bias=bias, as_it_was=-448.0)


@pytest.mark.parametrize("mode", ALL_MODES)
def test_errors_of_stacks_against_float64(mode):
    A, B = (torch.randn(4, 24, 700) / 4).to(E4M3), (torch.randn(4, 200, 700) / 4).to(E4M3).mT
    of = [0.5 + torch.rand(shape) for shape in stack_shapes(mode, 4, 24, 200, 700)]
    C = gg_runtime.grouped_mm(A, B, scale_a=of[0], scale_b=of[1], out_dtype=torch.float32)
    assert worst_stack_share(C, A, B, None, *of) <= 1


@pytest.mark.parametrize("mode", MODES)
def test_nan_in_rows_past_a_count_and_in_their_scales_stays_there(mode):
    A, B, of = stacks_of(mode)
    counts = torch.tensor([10, 0, 3, 9], dtype=torch.int32)
    for group, count in enumerate(counts.tolist()):
        A[group, count:] = torch.full((10 - count, 300), float("nan")).to(E4M3)
        of[0][group, count:] = float("nan")
    of[1][1] = float("inf")
    C = gg_runtime.grouped_mm(A, B, counts=counts, scale_a=of[0], scale_b=of[1])
    assert_stack_exact(C, A, B, counts, *of)


@pytest.mark.parametrize("mode", ALL_MODES)
def test_scaled_stacks_are_one_graph_of_torch_compile(mode):
    A, B, of = stacks_of(mode)
    for counts in COUNTS:
        given = {"counts": counts, "scale_a": of[0], "scale_b": of[1]}
        product = functools.partial(gg_runtime.grouped_mm, **given)
        compiled = torch.compile(lambda a, b: product(a, b), fullgraph=True, backend="aot_eager")  # noqa: B023
        assert torch.equal(compiled(A, B), product(A, B))


LISTS = [(5, 200, 300), (1, 1, 1), (24, 129, 257), (9, 128, 128), (0, 3, 5), (3, 7, 0)]


def lists_of(mode, sizes=LISTS):
    A = [sparse_integers(m, k, device="cpu") for m, n, k in sizes]
    B = [sparse_integers(n, k, device="cpu").t() for m, n, k in sizes]
    of = [[powers_of_two(shape, "cpu") for shape in list_shapes(mode, *size)] for size in sizes]
    return A, B, [one for one, _ in of], [one for _, one in of]


@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float32, E4M3], ids=str)
@pytest.mark.parametrize("mode", MODES)
def test_lists_are_scaled_by_lists(mode, out_dtype):
    A, B, of_a, of_b = lists_of(mode)
    plan = gg_runtime.Plan(A, B, out_dtype=out_dtype, scale_a=tuple(of_a), scale_b=tuple(of_b))
    for C in (gg_runtime.group_gemm(A, B, out_dtype=out_dtype, scale_a=of_a, scale_b=of_b), plan.run()):
        for c, *given in zip(C, A, B, of_a, of_b):
            assert c.dtype is out_dtype
            assert_exact(c, *of_one(*given))


@pytest.mark.parametrize("mode", MODES)
def test_lists_with_lists_of_scales_are_one_graph_of_torch_compile(mode):
    A, B, of_a, of_b = lists_of(mode, LISTS[:4])

    def products(A, B):
        return gg_runtime.group_gemm(A, B, scale_a=of_a, scale_b=of_b)

    for made, wanted in zip(torch.compile(products, fullgraph=True, backend="aot_eager")(A, B), products(A, B)):
        assert torch.equal(made, wanted)


@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("mode", ALL_MODES)
def test_e5m2_times_e4m3(mode, out_dtype):
    """Gradients times weights: values that e4m3 has not."""
    A = (torch.randn(24, 300) * 2.0**-12).to(torch.float8_e5m2)
    B = sparse_integers(4, 200, 300, device="cpu").mT
    shaped = ((1,), (4,)) if mode == "tensor" else shapes(mode, 24, 4, 200, 300)
    of = [powers_of_two(shape, "cpu") for shape in shaped]
    C = scaled(A, B, of, out_dtype=out_dtype)
    assert C.dtype is out_dtype and scaled(A, B, of).dtype is torch.bfloat16
    known = of if mode != "tensor" else (of[0].expand(24), of[1][:, None].expand(-1, 200))
    assert worst_share(C, A, B, OFFS, *known) <= 1
    compiled = torch.compile(lambda a: scaled(a, B, of), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(A), scaled(A, B, of))


def test_e5m2_goes_in_as_mat_a_of_ragged_rows_and_of_a_ragged_k():
    A, B, _ = operands("row")
    wide = A.float().to(torch.float8_e5m2)
    for given, words in (
        ((wide, B.float().to(torch.float8_e5m2)), "float8_e5m2 takes a mat_b of float8_e4m3fn"),
        ((A, B.float().to(torch.float8_e5m2)), "float8_e5m2 goes in as mat_a alone"),
    ):
        with pytest.raises(TypeError, match=words):
            gg_runtime.grouped_mm(*given, offs=OFFS)
    with pytest.raises(
        TypeError, match="float8_e5m2 inputs go with ragged rows .* and ragged K .a 2-D mat_a and a 2-D mat_b.; convert"
    ):
        gg_runtime.grouped_mm(wide[None].expand(4, -1, -1), B)
    for out_dtype in (torch.float16, E4M3):
        with pytest.raises(ValueError, match="products of float8_e5m2 are written in bfloat16 or float32"):
            gg_runtime.grouped_mm(wide, B, offs=OFFS, out_dtype=out_dtype)
