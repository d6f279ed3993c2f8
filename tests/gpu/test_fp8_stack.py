"""e4m3 stacks, batched and masked, with one scale, scales by row and column, and by block, against float64."""

import itertools
import random

import pytest

torch = pytest.importorskip("torch")

import gg_runtime  # noqa: E402
from capture import captured, node_count  # noqa: E402
from cases import DTYPES, FP8_STACK_ARTIFACTS, device_sm, legal  # noqa: E402
from ragged_cases import forced  # noqa: E402
from scaled_oracle import (  # noqa: E402
    E4M3,
    MODES,
    assert_stack_exact,
    clamped,
    powers_of_two,
    sparse_integers,
    stack_shapes,
    worst_stack_share,
)

pytestmark = pytest.mark.skipif(device_sm() != 90, reason=f"e4m3 kernels are for sm_90, this GPU is sm_{device_sm()}")

INT32, NAN = 2**31, float("nan")
AS_IT_WAS = -448.0  # in every output before a call; all dtypes hold it
ALL_MODES = ("tensor", *MODES)
OUTS = [torch.float16, torch.bfloat16, torch.float32, E4M3]
OWN = [artifact for artifact in FP8_STACK_ARTIFACTS if artifact["sm"] == device_sm()]


def artifacts():
    return pytest.mark.parametrize("artifact", OWN, ids=lambda artifact: artifact["name"])


def modes():
    return pytest.mark.parametrize("mode", ALL_MODES)


def integers(*shape, seed=0):
    return sparse_integers(*shape, device="cuda", seed=seed)


def normal(*shape):
    return (0.25 * torch.randn(shape, device="cuda")).to(E4M3)


def scales(mode, groups, m, n, k, make=None):
    make = make or (lambda shape: powers_of_two(shape, "cuda"))
    return [make(shape) for shape in stack_shapes(mode, groups, m, n, k)]


def as_counts(stated):
    return None if stated is None else torch.tensor(stated, dtype=torch.int32, device="cuda")


def poisoned(groups, m, n, dtype):
    return torch.full((groups, m, n), AS_IT_WAS, device="cuda").to(dtype)


def spoil(A, of_a, counts):
    """NaN past each count: in rows of A, and in their scales where they have some."""
    for group, count in enumerate(clamped(counts, *A.shape[:2])):
        A[group, count:] = torch.full_like(A[group, count:].float(), NAN).to(E4M3)
        if of_a.ndim > 1:
            of_a[group, count:] = NAN


def run(artifact, A, B, counts, of, **others):
    """By this artifact, or by the library's choice, into an output that holds AS_IT_WAS."""
    out_dtype = DTYPES[artifact["out_dtype"]] if artifact else others.pop("out_dtype", torch.bfloat16)
    out = poisoned(*A.shape[:2], B.shape[2], out_dtype)
    given = {"counts": counts, "out": out, "scale_a": of[0], "scale_b": of[1], **others}
    C = forced(artifact, A, B, **given) if artifact else gg_runtime.grouped_mm(A, B, **given)
    assert C is out
    return out


def check(artifact, groups, m, n, k, stated, **others):
    """On fresh integers: right, and nothing else is read into it or written."""
    m, n, k = legal(artifact, (m, n, k))
    A, B, of = integers(groups, m, k), integers(groups, n, k).mT, scales(artifact["scaling"], groups, m, n, k)
    counts = as_counts(stated)
    spoil(A, of[0], counts)
    C = run(artifact, A, B, counts, of, **others)
    assert_stack_exact(C, A, B, counts, *of, as_it_was=AS_IT_WAS, **others)


def test_there_are_kernels_to_look_at():
    kernels = {(artifact["addressing"], artifact["scaling"]) for artifact in OWN}
    assert kernels == {(by, mode) for by in ("pointers", "host_descriptors") for mode in ALL_MODES}


@artifacts()
def test_tile_edges(artifact):
    block_m, block_n = artifact["block_m"], artifact["block_n"]
    columns = itertools.cycle((1, block_n - 1, block_n, block_n + 1, 2 * block_n + 3, 300))
    depths = itertools.cycle((16, 127, 128, 129, 256, 389, 640, 1024))
    for m in (1, block_m - 1, block_m, block_m + 1, 2 * block_m + 3):
        for stated in (None, [m, 0, 1, m // 2], [m - 1, m, m, max(m - 1, 1)]):
            check(artifact, 4, m, next(columns), next(depths), stated)


@artifacts()
def test_any_counts_give_the_defined_result(artifact):
    m, n = 2 * artifact["block_m"] + 19, artifact["block_n"] + 9
    numbers = random.Random(m)
    for stated in (
        [-1, -5, -INT32, 3, 7, -7, 9, 9, -1],
        [m + 1, INT32 - 1, m, 0, INT32 - 1, m - 1, m + 99, 1, 2],
        [0] * 9,
        [numbers.randint(-3, m + 3) for _ in range(9)],
        [numbers.randrange(-INT32, INT32) for _ in range(9)],
    ):
        check(artifact, 9, m, n, 272, stated)


@artifacts()
@pytest.mark.parametrize("groups", [128, 129, 300])
def test_more_groups_than_any_scan_window(artifact, groups):
    numbers = random.Random(groups)
    check(artifact, groups, 9, 40, 144, [numbers.choice([0, 0, 0, 1, 2, 9]) for _ in range(groups)])
    check(artifact, groups, 9, 40, 144, [0] * (groups - 1) + [9])
    check(artifact, groups, 9, 40, 144, None)


@artifacts()
def test_nan_of_groups_without_rows_stays_there(artifact):
    m, n, k = legal(artifact, (artifact["block_m"] + 5, artifact["block_n"] + 9, 400))
    A, B, of = integers(4, m, k), integers(4, n, k).mT, scales(artifact["scaling"], 4, m, n, k)
    counts = as_counts([m, 0, 5, 0])
    spoil(A, of[0], counts)
    for group in (1, 3):
        B[group] = torch.full_like(B[group].float(), NAN).to(E4M3)
        of[1][group] = float("inf")
    C = run(artifact, A, B, counts, of)
    for group in (1, 3):
        B[group], of[1][group] = integers(k, n), 1
    assert_stack_exact(C, A, B, counts, *of, as_it_was=AS_IT_WAS)


@artifacts()
def test_a_nan_scale_stays_in_its_row_and_its_columns(artifact):
    if artifact["scaling"] == "tensor" or artifact["out_dtype"] == "e4m3":
        pytest.skip("one scale is of all; what is no number is told apart in the other outputs")
    m, n, k = legal(artifact, (artifact["block_m"] + 20, 2 * artifact["block_n"], 512))
    A, B = torch.ones(3, m, k, device="cuda").to(E4M3), torch.ones(3, n, k, device="cuda").to(E4M3).mT
    of = scales(artifact["scaling"], 3, m, n, k)
    of[0][0, 7] = of[1][2, 0] = NAN
    C = run(artifact, A, B, None, of)
    wrong = torch.zeros(3, m, n, dtype=torch.bool, device="cuda")
    wrong[0, 7] = True
    wrong[2, :, : 1 if artifact["scaling"] == "row" else 128] = True
    assert torch.equal(C.isnan(), wrong)


@artifacts()
def test_zero_and_huge_scales(artifact):
    m, n, k = legal(artifact, (artifact["block_m"] + 5, artifact["block_n"] + 16, 400))
    A, B, of = integers(2, m, k), integers(2, n, k).mT, scales(artifact["scaling"], 2, m, n, k)
    of[0].mul_(2.0**100)
    of[1].mul_(2.0**-100)
    of[1][1] = 0
    if of[0].ndim > 1:
        of[0][0, 3] = 0
    C = run(artifact, A, B, None, of)
    assert_stack_exact(C, A, B, None, *of)
    assert not C[1].float().any()


@modes()
@pytest.mark.parametrize("out_dtype", OUTS, ids=str)
def test_errors_against_float64(mode, out_dtype):
    m, n = 67, 272
    counts = as_counts([67, 0, 1, 40, 66])
    for k in (16, 112, 128, 144, 1008, 1024, 1001, 4096):
        A, B = normal(5, m, k), normal(5, n, k).mT
        of = scales(mode, 5, m, n, k, lambda shape: 0.5 + 1.5 * torch.rand(shape, device="cuda"))
        for stated in (None, counts):
            share = worst_stack_share(run(None, A, B, stated, of, out_dtype=out_dtype), A, B, stated, *of)
            assert share <= 1, f"K={k}: {share:.2f} of the allowed error"


@artifacts()
def test_errors_against_float64_of_each_kernel(artifact):
    m, n, k = legal(artifact, (140, 272, 1040))
    A, B = normal(3, m, k), normal(3, n, k).mT
    of = scales(artifact["scaling"], 3, m, n, k, lambda shape: 0.5 + torch.rand(shape, device="cuda"))
    share = worst_stack_share(run(artifact, A, B, None, of), A, B, None, *of)
    assert share <= 1, f"{share:.2f} of the allowed error"


LIES = {
    "as it is": lambda t: t,
    "rows contiguous, as DeepGEMM's": lambda t: t.mT.contiguous().mT if t.ndim > 1 else t,
    "every second": lambda t: torch.stack([t, torch.full_like(t, NAN)], -1).flatten(-2)[..., ::2],
    "one behind": lambda t: torch.cat([torch.full((1,), NAN, device="cuda"), t.flatten()])[1:].view(t.shape),
    "groups innermost": lambda t: t.movedim(0, -1).contiguous().movedim(-1, 0),
    "of wider ones": lambda t: torch.nn.functional.pad(t, (5, 3), value=NAN)[..., 5:-3],
}


@artifacts()
@pytest.mark.parametrize("lies", LIES)
def test_scales_are_read_where_they_lie(artifact, lies):
    m, n, k = legal(artifact, (150, 400, 1040))
    A, B, counts = integers(3, m, k), integers(3, n, k).mT, as_counts([150, 0, 75])
    of = scales(artifact["scaling"], 3, m, n, k)
    C = run(artifact, A, B, counts, [LIES[lies](one) for one in of])
    assert_stack_exact(C, A, B, counts, *of, as_it_was=AS_IT_WAS)


@artifacts()
def test_one_scale_for_many_has_a_stride_of_zero(artifact):
    m, n, k = legal(artifact, (150, 400, 1040))
    A, B = integers(3, m, k), integers(3, n, k).mT
    of_a, of_b = stack_shapes(artifact["scaling"], 3, m, n, k)
    of = torch.full((), 0.5, device="cuda").expand(of_a), torch.full((), 4.0, device="cuda").expand(of_b)
    assert_stack_exact(run(artifact, A, B, None, of), A, B, None, *of)


@modes()
@pytest.mark.parametrize("n, k", [(96, 128), (75, 61), (1, 3), (257, 1001)], ids=str)
def test_any_layout(mode, n, k):
    e, m = 4, 70
    of, counts = scales(mode, e, m, n, k), as_counts([70, 0, 5, 69])
    left = [
        integers(e, m, k), integers(e, k, m).mT, integers(e, m, k + 9)[..., 3 : 3 + k], integers(e, m, 2 * k)[..., ::2],
        integers(m, e, k).transpose(0, 1), integers(2 * e, m, k)[::2],
    ]  # fmt: skip
    right = [integers(e, n, k).mT, integers(e, k, n), integers(1, n, k).mT.expand(e, k, n)]
    for A, B, stated in itertools.product(left, right, (None, counts)):
        C = run(None, A, B, stated, of, out_dtype=torch.float32)
        assert_stack_exact(C, A, B, stated, *of, as_it_was=AS_IT_WAS)


@modes()
def test_a_bias_is_added_and_an_activation_follows(mode):
    e, m, n, k = 3, 70, 272, 400
    A, B, of = integers(e, m, k), integers(e, n, k).mT, scales(mode, e, m, n, k)
    bias = torch.randint(-9, 10, (e, n), device="cuda").to(torch.bfloat16)
    for counts in (None, as_counts([70, 0, 9])):
        C = run(None, A, B, counts, of, bias=bias)
        assert_stack_exact(C, A, B, counts, *of, bias=bias, as_it_was=AS_IT_WAS)
        h = torch.full((e, m, n // 2), AS_IT_WAS, device="cuda", dtype=torch.bfloat16)
        given = {"counts": counts, "bias": bias, "scale_a": of[0], "scale_b": of[1]}
        gg_runtime.grouped_mm(A, B, out=h, activation="swiglu", **given)
        for group, count in enumerate(clamped(counts, e, m)):
            z = C[group, :count].float()
            wanted = torch.nn.functional.silu(z[:, : n // 2]) * z[:, n // 2 :]
            torch.testing.assert_close(h[group, :count].float(), wanted, rtol=2**-7, atol=2**-7)
            assert (h[group, count:] == AS_IT_WAS).all()


@modes()
def test_a_graph_and_a_plan_read_counts_and_scales_of_the_moment(mode):
    e, m, n, k = 140, 33, 96, 384
    A, B, of = integers(e, m, k), integers(e, n, k).mT, scales(mode, e, m, n, k)
    counts, out = as_counts([m] * e), poisoned(e, m, n, torch.bfloat16)
    given = {"counts": counts, "scale_a": of[0], "scale_b": of[1], "out": out}
    assert node_count(lambda: gg_runtime.grouped_mm(A, B, **given)) == 1
    graph, C = captured(lambda: gg_runtime.grouped_mm(A, B, **given))
    plan = gg_runtime.Plan(A, B, **given)
    assert C is out
    for seed in range(8):
        numbers = random.Random(seed)
        counts.copy_(torch.tensor([numbers.randint(-1, numbers.choice([0, 1, 8, m])) for _ in range(e)]))
        for one in of:
            one.copy_(powers_of_two(one.shape, "cuda", seed=seed))
        for again in (graph.replay, plan.run):
            out.fill_(AS_IT_WAS)
            again()
            assert_stack_exact(out, A, B, counts, *of, as_it_was=AS_IT_WAS)


@modes()
def test_the_bits_are_the_same_from_run_to_run_and_whatever_the_batch(mode):
    e, m, n, k = 5, 100, 256, 1024
    A, B = normal(e, m, k), normal(e, n, k).mT
    of = scales(mode, e, m, n, k, lambda shape: 0.5 + torch.rand(shape, device="cuda"))
    given = {"out_dtype": torch.float32, "batch_invariant": True}
    whole = [run(None, A, B, None, of, **given) for _ in range(3)]
    assert torch.equal(whole[0], whole[1]) and torch.equal(whole[0], whole[2])
    part = run(None, A, B, as_counts([17] * e), of, **given)
    assert torch.equal(part[:, :17], whole[0][:, :17])


@modes()
def test_a_row_alone_has_the_bits_that_it_has_among_others(mode):
    """In a group that is one, of one block: arrays of scales of blocks then have one element each."""
    m, n, k = 64, 128, 128
    A, B = normal(1, m, k), normal(1, n, k).mT
    of_a, of_b = scales(mode, 1, m, n, k, lambda shape: 0.5 + torch.rand(shape, device="cuda"))
    of_row = of_a if mode == "tensor" else of_a[:, :1].contiguous()
    given = {"out_dtype": torch.float32, "batch_invariant": True}
    whole, alone = run(None, A, B, None, (of_a, of_b), **given), run(None, A[:, :1], B, None, (of_row, of_b), **given)
    assert torch.equal(alone, whole[:, :1])


def test_masked_rows_are_those_of_ragged_ones():
    """The same rows in both layouts, with exact sums."""
    e, m, n, k = 16, 96, 256, 384
    counts = as_counts([random.Random(g).randint(0, m) for g in range(e)])
    A, B = integers(e, m, k), integers(e, n, k).mT
    rows = [slice(count) for count in counts.tolist()]
    for mode in MODES:
        of_a, of_b = scales(mode, e, m, n, k)
        packed, of_packed = (torch.cat([one[g, some] for g, some in enumerate(rows)]) for one in (A, of_a))
        ragged = gg_runtime.grouped_mm(packed, B, offs=counts.cumsum(0).int(), scale_a=of_packed, scale_b=of_b)
        masked = gg_runtime.grouped_mm(A, B, counts=counts, scale_a=of_a, scale_b=of_b)
        assert torch.equal(ragged, torch.cat([masked[g, some] for g, some in enumerate(rows)]))


@modes()
def test_sizes_of_zero(mode):
    for e, m, n, k in ((0, 4, 5, 16), (3, 0, 5, 16), (3, 4, 0, 16), (3, 4, 5, 0)):
        A, B = integers(e, m, k), integers(e, n, k).mT
        C = run(None, A, B, as_counts([9] * e), scales(mode, e, m, n, k))
        assert C.shape == (e, m, n) and not C.float().any()
