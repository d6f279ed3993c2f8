"""e4m3 inputs: every output dtype, scale and layout, against products in float64; both forms."""

import functools

import pytest

torch = pytest.importorskip("torch")

import gg_runtime  # noqa: E402
import oracle  # noqa: E402
import ragged_oracle  # noqa: E402
from capture import captured  # noqa: E402
from cases import DTYPES, RAGGED_ARTIFACTS, device_sm  # noqa: E402
from fp8_errors import ErrorTable  # noqa: E402
from ragged_cases import as_offs, forced  # noqa: E402

pytestmark = pytest.mark.skipif(device_sm() != 90, reason=f"e4m3 kernels are for sm_90, this GPU is sm_{device_sm()}")

E4M3 = torch.float8_e4m3fn
OUTS = [torch.float16, torch.bfloat16, torch.float32, E4M3]
DEPTHS = [16, 32, 48, 128, 144, 1000, 1001, 2048, 4096, 16384]
SIZES = [40, 0, 1, 67]
N = 96
RAGGED = [artifact for artifact in RAGGED_ARTIFACTS if artifact["dtype"] == "e4m3"]
integers = functools.partial(oracle.sparse_integers, dtype=E4M3)
SCALES = {"none": (0, 0), "one each": (1, 1), "of each group": (1, len(SIZES)), "of B alone": (0, len(SIZES))}


def outs():
    return pytest.mark.parametrize("out_dtype", OUTS, ids=str)


def normal(*shape):
    """Small enough for scaled sums of 16384 products to stay under 448, the greatest e4m3."""
    return (0.25 * torch.randn(shape, device="cuda")).to(E4M3)


def scale(count: int):
    """Such as quantizers give; none for a count of 0."""
    return 0.5 + 1.5 * torch.rand(count, device="cuda") if count else None


def factor(scale_a, scale_b, group: int) -> float:
    a, b = (1.0 if s is None else s[group % s.numel()].item() for s in (scale_a, scale_b))
    return a * b


def poisoned(rows, columns, dtype):
    return torch.full((rows, columns), float("nan"), device="cuda").to(dtype)


@outs()
@pytest.mark.parametrize("scales", SCALES)
def test_grouped_mm(scales, out_dtype):
    table, offs = ErrorTable(), as_offs(SIZES)
    for k in DEPTHS:
        A, B = normal(sum(SIZES), k), normal(len(SIZES), N, k).mT
        scale_a, scale_b = (scale(count) for count in SCALES[scales])
        out = poisoned(A.shape[0], N, out_dtype)
        gg_runtime.grouped_mm(A, B, offs=offs, out_dtype=out_dtype, out=out, scale_a=scale_a, scale_b=scale_b)
        for group, rows in ragged_oracle.group_rows(offs, A.shape[0]):
            table.add(f"K={k} group {group}", out[rows], A[rows], B[group], factor(scale_a, scale_b, group))
    table.check()


@outs()
@pytest.mark.parametrize("scales", [*SCALES, "of each group, both"])
def test_group_gemm(scales, out_dtype):
    table, counts = ErrorTable(), SCALES.get(scales, (len(SIZES), len(SIZES)))
    for k in DEPTHS:
        A, B = [normal(m, k) for m in SIZES], [normal(N, k).t() for _ in SIZES]
        scale_a, scale_b = (scale(count) for count in counts)
        out = [poisoned(m, N, out_dtype) for m in SIZES]
        gg_runtime.group_gemm(A, B, out=out, out_dtype=out_dtype, scale_a=scale_a, scale_b=scale_b)
        for group, (a, b, c) in enumerate(zip(A, B, out)):
            if c.numel():
                table.add(f"K={k} group {group}", c, a, b, factor(scale_a, scale_b, group))
    table.check()


LEFT = {
    "row-major": integers,
    "column-major": lambda rows, k: integers(k, rows).t(),
    "unaligned": lambda rows, k: integers(rows * k + 1)[1:].view(rows, k),
    "odd columns of a wider one": lambda rows, k: integers(rows, k + 9)[:, 3 : 3 + k],
    "every second column": lambda rows, k: integers(rows, 2 * k)[:, ::2],
}
RIGHT = {
    "NK": lambda e, k, n: integers(e, n, k).mT,
    "KN": integers,
    "KEN": lambda e, k, n: integers(k, e, n).transpose(0, 1),
    "unaligned NK": lambda e, k, n: integers(e * k * n + 1)[1:].view(e, n, k).mT,
    "every second of K": lambda e, k, n: integers(e, n, 2 * k).mT[:, ::2],
    "one for all groups": lambda e, k, n: integers(1, n, k).mT.expand(e, k, n),
}


@pytest.mark.parametrize("n, k", [(96, 128), (75, 61), (1, 3)], ids=["aligned", "odd", "tiny"])
@pytest.mark.parametrize("b", RIGHT)
@pytest.mark.parametrize("a", LEFT)
def test_any_layout(a, b, n, k):
    A, B, offs = LEFT[a](sum(SIZES) + 4, k), RIGHT[b](len(SIZES), k, n), as_offs(SIZES)
    for out_dtype in (torch.bfloat16, torch.float32):
        C = gg_runtime.grouped_mm(A, B, offs=offs, out_dtype=out_dtype)
        ragged_oracle.assert_exact(C, A, B, offs)
        As, Bs = [A[rows] for _, rows in ragged_oracle.group_rows(offs, A.shape[0])], [B[0], B[2], B[3]]
        oracle.assert_exact(gg_runtime.group_gemm(As, Bs, out_dtype=out_dtype), As, Bs)


@outs()
def test_an_output_with_any_strides(out_dtype):
    A, B, offs = integers(sum(SIZES), 128), integers(len(SIZES), N, 128).mT, as_offs(SIZES)
    rows = A.shape[0]
    for whole in (poisoned(rows, N + 7, out_dtype)[:, 3 : 3 + N], poisoned(N, rows, out_dtype).t(),
                  poisoned(rows, 2 * N, out_dtype)[:, ::2]):  # fmt: skip
        gg_runtime.grouped_mm(A, B, offs=offs, out_dtype=out_dtype, out=whole)
        ragged_oracle.assert_exact(whole, A, B, offs)


@outs()
def test_every_finite_code_is_read_and_written_as_itself(out_dtype):
    codes = torch.arange(256, dtype=torch.uint8, device="cuda")
    codes[[0x7F, 0xFF]] = 0  # the two NaN
    B = codes.view(E4M3).view(1, 16, 16)
    one_hot = torch.eye(16, device="cuda").to(E4M3)
    C = gg_runtime.grouped_mm(one_hot, B, offs=as_offs([16]), out_dtype=out_dtype)
    assert C.dtype is out_dtype and torch.equal(C.float(), B[0].float())
    (C,) = gg_runtime.group_gemm([B[0].t()], [one_hot], out_dtype=out_dtype)
    assert C.dtype is out_dtype and torch.equal(C.float(), B[0].t().float())


def test_nan_codes_stay_in_their_rows():
    A, B = integers(40, 64), integers(2, 32, 64).mT
    A.view(torch.uint8)[7, 5] = 0x7F
    C = gg_runtime.grouped_mm(A, B, offs=as_offs([20, 20]))
    assert bool(C[7].isnan().all()) and not bool(C[:7].isnan().any()) and not bool(C[8:].isnan().any())


@pytest.mark.parametrize("artifact", RAGGED, ids=[artifact["name"] for artifact in RAGGED])
def test_rows_past_the_last_end_are_zeros_whatever_the_scales_are(artifact):
    A, B = integers(200, 256), integers(3, 128, 256).mT
    scales = {name: torch.full((size,), float("nan"), device="cuda") for name, size in (("scale_a", 1), ("scale_b", 3))}
    out_dtype = DTYPES[artifact["out_dtype"]]
    out = torch.ones(200, 128, device="cuda").to(out_dtype)
    forced(artifact, A, B, offs=as_offs([40, 0, 70]), out=out, out_dtype=out_dtype, **scales)
    assert not out[110:].float().any()
    assert out_dtype is E4M3 or bool(out[:110].isnan().all())


def test_sums_past_the_greatest_e4m3_become_it():
    """Sums from 416 on, in steps of 4, and their negatives; 448 is the greatest."""
    A = torch.tensor([[416, 4], [-416, -4], [448, 448]], device="cuda").to(E4M3)
    B = torch.stack([torch.ones(16), torch.arange(16)]).cuda().to(E4M3)
    expected = (A.float() @ B.float()).clamp(-448, 448).to(E4M3).float()
    assert torch.equal(gg_runtime.grouped_mm(A, B[None], offs=as_offs([3]), out_dtype=E4M3).float(), expected)
    assert torch.equal(gg_runtime.group_gemm([A], [B], out_dtype=E4M3)[0].float(), expected)


def test_outputs_are_bfloat16_unless_told_otherwise():
    A, B = integers(40, 64), integers(2, 32, 64).mT
    assert gg_runtime.grouped_mm(A, B, offs=as_offs([20, 20])).dtype is torch.bfloat16
    assert gg_runtime.group_gemm([A], [B[0]])[0].dtype is torch.bfloat16


@pytest.mark.parametrize("out_dtype", OUTS[:3], ids=str)
def test_a_bias_is_added_to_the_scaled_sum(out_dtype):
    A, B, offs = integers(sum(SIZES) + 2, 128), integers(len(SIZES), N, 128).mT, as_offs(SIZES)
    bias = torch.randint(-9, 10, (len(SIZES), N), device="cuda").to(out_dtype)
    scales = {"scale_a": torch.full((1,), 2.0, device="cuda"), "scale_b": torch.tensor([1, 2, 0.5, 4], device="cuda")}
    C = gg_runtime.grouped_mm(A, B, offs=offs, bias=bias, out_dtype=out_dtype, **scales)
    ragged_oracle.assert_exact(C, A, B, offs, bias=bias, **scales)


def test_a_plan_reads_the_scales_of_the_moment():
    A, B = [integers(40, 64) for _ in range(3)], [integers(32, 64).t() for _ in range(3)]
    scale_a, scale_b = torch.ones(1, device="cuda"), torch.ones(3, device="cuda")
    plan = gg_runtime.Plan(A, B, out_dtype=torch.float32, scale_a=scale_a, scale_b=scale_b)
    for turn in (1, 2, 4):
        scale_a.fill_(turn)
        scale_b.copy_(torch.tensor([1, turn, 0.5]))
        for c, a, b, s in zip(plan.run(), A, B, scale_b.tolist()):
            assert torch.equal(c, turn * s * (a.float() @ b.float()))


def test_replays_take_the_offs_and_scales_of_the_moment():
    A, B, offs = integers(sum(SIZES), 128), integers(len(SIZES), N, 128).mT, as_offs(SIZES)
    scales = {"scale_a": torch.ones(1, device="cuda"), "scale_b": torch.ones(len(SIZES), device="cuda")}
    graph, C = captured(lambda: gg_runtime.grouped_mm(A, B, offs=offs, **scales))
    for turn, ends in enumerate(([40, 40, 41, 108], [0, 100, 100, 108], [5, 3, 2, -1], [1, 2, 3, 4])):
        offs.copy_(torch.tensor(ends))
        scales["scale_a"].fill_(2.0**turn)
        scales["scale_b"].copy_(torch.tensor([1, 0.5, 4, 2.0**-turn]))
        C.fill_(float("nan"))
        graph.replay()
        ragged_oracle.assert_exact(C, A, B, offs, **scales)
