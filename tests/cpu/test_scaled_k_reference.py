"""grouped_mm on the CPU with a ragged K of e4m3 and scales of blocks along it."""

import pytest

torch = pytest.importorskip("torch")

import gg_runtime  # noqa: E402
from scaled_k_oracle import assert_exact, make_scales, most_blocks, spans, worst_share  # noqa: E402
from scaled_oracle import E4M3, sparse_integers  # noqa: E402

OFFS = {
    "any": [130, 131, 131, 400],
    "whole blocks": [128, 384, 384, 512],
    "all empty": [0, 0, 0, 0],
    "past the last": [1, 2, 3, 4],
    "garbage": [-5, 600, 30, 2**31 - 1],
}
M, N, TOTAL = 21, 19, 520


def operands(total=TOTAL):
    A, B = sparse_integers(M, total, device="cpu"), sparse_integers(N, total, device="cpu").mT
    return A, B, *make_scales(M, N, most_blocks(total, 4), "cpu")


def as_offs(ends):
    return torch.tensor(ends, dtype=torch.int32)


def scaled(A, B, of_a, of_b, offs, **others):
    return gg_runtime.grouped_mm(A, B, offs=offs, scale_a=of_a, scale_b=of_b, **others)


@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("alignment", [1, 128])
@pytest.mark.parametrize("ends", OFFS.values(), ids=OFFS)
def test_products_are_scaled_by_block_from_each_groups_start(ends, alignment, out_dtype):
    A, B, *of = operands()
    C = scaled(A, B, *of, as_offs(ends), out_dtype=out_dtype, k_alignment=alignment)
    assert C.dtype == out_dtype
    assert_exact(C, A, B, as_offs(ends), *of, alignment=alignment)


def test_the_promise_changes_nothing_where_it_is_kept():
    A, B, *of = operands()
    offs = as_offs(OFFS["whole blocks"])
    kept = scaled(A, B, *of, offs, k_alignment=128)
    assert torch.equal(kept, scaled(A, B, *of, offs))
    assert torch.equal(kept, scaled(A, B, of[0][:, :5], of[1][:5], offs, k_alignment=128))  # as many blocks as K has


def test_zeros_up_to_the_next_multiple_leave_a_product_as_it_is():
    A, B, *of = operands()
    for start, stop in ((130, 256), (257, 384), (511, 520)):
        A[:, start:stop] = 0
    right = scaled(A, B, *of, as_offs([256, 384, 384, 520]), k_alignment=128)
    assert torch.equal(right, scaled(A, B, *of, as_offs([130, 257, 384, 511]), k_alignment=128))


def test_errors_against_float64():
    A, B = (torch.randn(M, TOTAL) / 4).to(E4M3), (torch.randn(N, TOTAL) / 4).to(E4M3).mT
    of = make_scales(M, N, most_blocks(TOTAL, 4), "cpu", lambda shape: 0.5 + torch.rand(shape))
    offs = as_offs(OFFS["any"])
    assert worst_share(scaled(A, B, *of, offs, out_dtype=torch.float32), A, B, offs, *of) <= 1


def test_scales_of_blocks_that_no_group_has_are_not_read():
    A, B, *of = operands()
    offs = as_offs(OFFS["any"])
    k, first = spans(offs, TOTAL, 1)[-1]
    used = first + -(-(k.stop - k.start) // 128)
    of[0][:, used:] = float("nan")
    of[1][used:] = float("nan")
    assert_exact(scaled(A, B, *of, offs, out_dtype=torch.float32), A, B, offs, *of)


def test_a_group_past_the_last_block_takes_its_scales():
    A, B, *_ = operands()
    of = make_scales(M, N, 5, "cpu")
    offs = as_offs([1, 2, 3, 520])
    assert_exact(scaled(A, B, *of, offs, out_dtype=torch.float32), A, B, offs, *of)


def test_alpha_beta_and_a_plan():
    A, B, *of = operands()
    offs, before = as_offs(OFFS["any"]), torch.randint(-9, 9, (4, M, N)).float()
    out = before.clone()
    given = {"alpha": 0.5, "beta": 2.0, "out": out}
    scaled(A, B, *of, offs, **given)
    assert_exact(out, A, B, offs, *of, alpha=0.5, beta=2.0, before=before)
    plan = gg_runtime.Plan(A, B, offs=offs, scale_a=of[0], scale_b=of[1], k_alignment=128)
    assert_exact(plan.run(), A, B, offs, *of, alignment=128)


@pytest.mark.parametrize("names", [(), ("a",), ("b",), ("a", "b")], ids=str)
def test_one_scale_is_that_of_all_products(names):
    A, B, *_ = operands()
    offs, one = as_offs(OFFS["any"]), {"a": torch.tensor(0.5), "b": torch.full((1, 1), 8.0)}
    factor = torch.tensor([float(one[name]) for name in names]).prod().item()
    C = gg_runtime.grouped_mm(A, B, offs=offs, **{f"scale_{name}": one[name] for name in names})
    of = torch.full((M, 9), factor), torch.ones(9, N)
    assert_exact(C, A, B, offs, *of)


def test_scales_by_quantize_1x128_of_what_is_transposed():
    x, dy = torch.randn(384, 24).bfloat16(), torch.randn(384, 40).bfloat16()
    (a, of_a), (b, of_b) = (gg_runtime.quantize_1x128(one.mT) for one in (x, dy))
    offs = as_offs([128, 384])
    C = scaled(a, b.mT, of_a, of_b.mT, offs, out_dtype=torch.float32, k_alignment=128)
    right = torch.stack([x[:128].double().mT @ dy[:128].double(), x[128:].double().mT @ dy[128:].double()])
    assert torch.linalg.vector_norm(C - right) <= 0.05 * torch.linalg.vector_norm(right)


@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("alignment", [1, 128])
def test_e5m2_times_e4m3(alignment, out_dtype):
    """Gradients times activations: values that e4m3 has not."""
    A = (torch.randn(M, TOTAL) * 2.0**-12).to(torch.float8_e5m2)
    _, B, *of = operands()
    offs = as_offs(OFFS["whole blocks"])
    C = scaled(A, B, *of, offs, out_dtype=out_dtype, k_alignment=alignment)
    assert C.dtype is out_dtype and scaled(A, B, *of, offs).dtype is torch.bfloat16
    assert worst_share(C, A, B, offs, *of, alignment=alignment) <= 1
    assert torch.equal(gg_runtime.grouped_mm(A, B, offs=offs), scaled(A, B, None, None, offs))
