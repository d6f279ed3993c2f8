"""e4m3 lists with scales by row and column, and by block, against products in float64."""

import pytest

torch = pytest.importorskip("torch")

import gg_runtime  # noqa: E402
from capture import captured  # noqa: E402
from cases import DTYPES, SCALED_LIST_ARTIFACTS, device_sm, legal  # noqa: E402
from scaled_oracle import (  # noqa: E402
    E4M3,
    MODES,
    assert_exact,
    list_shapes,
    of_one,
    powers_of_two,
    sparse_integers,
    worst_share,
)

pytestmark = pytest.mark.skipif(device_sm() != 90, reason=f"e4m3 kernels are for sm_90, this GPU is sm_{device_sm()}")

NAN = float("nan")
SIZES = [(1, 1, 1), (33, 41, 57), (128, 128, 128), (70, 300, 129), (5, 1, 389), (130, 65, 16), (0, 9, 8), (9, 12, 0)]
OUTS = [torch.float16, torch.bfloat16, torch.float32, E4M3]


def operands(mode, sizes, make=None, scale=None):
    make = make or (lambda m, n: sparse_integers(m, n, device="cuda"))
    scale = scale or (lambda shape: powers_of_two(shape, "cuda"))
    A, B = [make(m, k) for m, n, k in sizes], [make(n, k).t() for m, n, k in sizes]
    of = [[scale(shape) for shape in list_shapes(mode, *size)] for size in sizes]
    return A, B, [one for one, _ in of], [one for _, one in of]


def check(C, A, B, of_a, of_b):
    for c, *given in zip(C, A, B, of_a, of_b):
        assert_exact(c, *of_one(*given))


def poisoned(A, B, dtype):
    return [torch.full((len(a), b.shape[1]), NAN, device="cuda").to(dtype) for a, b in zip(A, B)]


@pytest.mark.parametrize("artifact", SCALED_LIST_ARTIFACTS, ids=lambda artifact: artifact["name"])
@pytest.mark.parametrize("copies", [1, 5])
def test_each_kernel_by_value_and_from_memory(artifact, copies):
    sizes = SIZES
    if artifact["addressing"] == "host_descriptors":  # which TMA makes for no K of 0
        sizes = [legal(artifact, size) for size in [(129, 272, 400), *SIZES[1:-1]]]
    given = operands(artifact["scaling"], sizes * copies)
    A, B, of_a, of_b = given
    out = poisoned(A, B, DTYPES[artifact["out_dtype"]])
    plan = gg_runtime.Plan(A, B, out=out, scale_a=of_a, scale_b=of_b, variant=artifact["name"])
    assert plan.by_value == (copies == 1)
    check(plan.run(), *given)


def test_there_are_kernels_to_look_at():
    kernels = {(artifact["scaling"], artifact["addressing"]) for artifact in SCALED_LIST_ARTIFACTS}
    assert kernels == {(mode, addressing) for mode in MODES for addressing in ("pointers", "host_descriptors")}


@pytest.mark.parametrize("mode", MODES)
def test_what_tma_reads_goes_to_its_kernels_and_the_rest_to_a_launch_of_its_own(mode):
    """K of 1000 is no whole 16 bytes."""
    given = operands(mode, [(384, 640, 1024)] * 40 + [(70, 300, 1000)])
    A, B, of_a, of_b = given
    out = poisoned(A, B, torch.bfloat16)
    whole = gg_runtime.Plan(A[:40], B[:40], out=out[:40], scale_a=of_a[:40], scale_b=of_b[:40])
    assert whole.variant.startswith(f"hopper_{mode}_scales") and whole.launches == 1
    mixed = gg_runtime.Plan(A, B, out=out, scale_a=of_a, scale_b=of_b)
    assert mixed.launches == 2
    check(mixed.run(), *given)


@pytest.mark.parametrize("mode", MODES)
def test_replays_read_scales_of_that_moment(mode):
    given = operands(mode, [(130, 272, 400)] * 9)
    A, B, of_a, of_b = given
    out = poisoned(A, B, torch.bfloat16)
    plan = gg_runtime.Plan(A, B, out=out, scale_a=of_a, scale_b=of_b)
    assert plan.variant.startswith(f"hopper_{mode}_scales")
    graph, _ = captured(plan.run)
    for _ in range(3):
        for one in (*of_a, *of_b):
            one.copy_(powers_of_two(one.shape, "cuda"))
        for c in out:
            c.fill_(NAN)
        graph.replay()
        torch.cuda.synchronize()
        check(out, *given)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("out_dtype", OUTS, ids=str)
def test_errors_against_float64(mode, out_dtype):
    sizes = [(40, 96, k) for k in (16, 128, 144, 1001, 4096)]
    A, B, of_a, of_b = operands(
        mode, sizes, lambda m, n: (0.25 * torch.randn(m, n, device="cuda")).to(E4M3),
        lambda shape: 0.5 + torch.rand(shape, device="cuda"),
    )  # fmt: skip
    C = gg_runtime.group_gemm(A, B, scale_a=of_a, scale_b=of_b, out_dtype=out_dtype)
    for c, *given in zip(C, A, B, of_a, of_b):
        assert worst_share(c, *of_one(*given)) <= 1


LIES = {
    "as it is": lambda t: t,
    "transposed": lambda t: t.mT.contiguous().mT if t.ndim > 1 else t,
    "every second": lambda t: torch.stack([t, torch.full_like(t, NAN)], -1).flatten(-2)[..., ::2],
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("lies", LIES)
@pytest.mark.parametrize("out_order", ["row-major", "column-major"])
def test_scales_and_outputs_lie_as_they_like(mode, lies, out_order):
    given = operands(mode, SIZES)
    A, B, of_a, of_b = given
    out = poisoned(A, B, torch.float32)
    if out_order == "column-major":
        out = [c.t().contiguous().t() for c in out]
    scales = {"scale_a": [LIES[lies](one) for one in of_a], "scale_b": [LIES[lies](one) for one in of_b]}
    check(gg_runtime.group_gemm(A, B, out=out, **scales), *given)


@pytest.mark.parametrize("mode", MODES)
def test_a_nan_scale_stays_in_its_product(mode):
    given = operands(mode, SIZES[:4])
    A, B, of_a, of_b = given
    of_b[1] = torch.full_like(of_b[1], NAN)
    C = gg_runtime.group_gemm(A, B, scale_a=of_a, scale_b=of_b, out_dtype=torch.float32)
    assert C[1].isnan().all() and not any(C[i].isnan().any() for i in (0, 2, 3))
