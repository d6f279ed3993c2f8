"""A of e5m2, as gradients are, times B of e4m3: grouped_mm with ragged rows in every scale mode, against float64."""

import pytest

torch = pytest.importorskip("torch")

import gg_runtime  # noqa: E402
import scaled_oracle  # noqa: E402
from cases import DTYPES, MIXED_ARTIFACTS, device_sm, legal  # noqa: E402
from ragged_cases import as_offs, forced, garbage  # noqa: E402
from scaled_oracle import E4M3, MODES, assert_exact, powers_of_two, sparse_integers, worst_share  # noqa: E402

pytestmark = pytest.mark.skipif(device_sm() != 90, reason=f"fp8 kernels are for sm_90, this GPU is sm_{device_sm()}")

E5M2 = torch.float8_e5m2
ALL_MODES = ("tensor", *MODES)
OUTS = [torch.bfloat16, torch.float32]
SIZES = [40, 0, 1, 67, 130]


def artifacts():
    return pytest.mark.parametrize("artifact", MIXED_ARTIFACTS, ids=lambda artifact: artifact["name"])


def gradients(*shape, seed=0):
    return sparse_integers(*shape, device="cuda", seed=seed).float().to(E5M2)


def weights(groups, n, k):
    return sparse_integers(groups, n, k, device="cuda").mT


def scales(mode, rows, groups, n, k, make=None):
    make = make or (lambda shape: powers_of_two(shape, "cuda"))
    shapes = ((1,), (groups,)) if mode == "tensor" else scaled_oracle.shapes(mode, rows, groups, n, k)
    return [make(shape) for shape in shapes]


def by_rows(of, A, B):
    """The same scales as the oracle knows them, of rows or of blocks."""
    return of if of[1].ndim > 1 else (of[0].expand(len(A)), of[1][:, None].expand(-1, B.shape[2]))


def run(artifact, A, B, offs, of, **others):
    out_dtype = DTYPES[artifact["out_dtype"]] if artifact else others.pop("out_dtype")
    out = torch.full((A.shape[0], B.shape[2]), float("nan"), device="cuda", dtype=out_dtype)
    given = {"offs": offs, "out": out, "scale_a": of[0], "scale_b": of[1], **others}
    C = forced(artifact, A, B, **given) if artifact else gg_runtime.grouped_mm(A, B, **given)
    assert C is out
    return out


def test_there_are_kernels_to_look_at():
    kernels = {(artifact["addressing"], artifact["scaling"], artifact["out_dtype"]) for artifact in MIXED_ARTIFACTS}
    assert kernels == {
        (by, mode, out) for by in ("pointers", "host_descriptors") for mode in ALL_MODES for out in ("bf16", "fp32")
    }


@artifacts()
def test_tile_edges(artifact):
    block_m, block_n = artifact["block_m"], artifact["block_n"]
    sizes = [0, 1, block_m - 1, 0, block_m, block_m + 1, 2 * block_m, 2 * block_m + 3, 0]
    columns = [1, block_n - 1, block_n, block_n + 1, 2 * block_n + 3, 300]
    for turn, k in enumerate((16, 127, 128, 129, 256, 389, 640, 1024)):
        rows = sum(sizes) + turn % 3 * (block_m - 1)
        rows, n, k = legal(artifact, (rows, columns[turn % len(columns)], k))
        A, B, offs = gradients(rows, k), weights(len(sizes), n, k), as_offs(sizes[turn:] + sizes[:turn])
        of = scales(artifact["scaling"], rows, len(sizes), n, k)
        assert_exact(run(artifact, A, B, offs, of), A, B, offs, *by_rows(of, A, B))


@artifacts()
def test_any_offs_give_the_defined_result(artifact):
    rows, n, k = legal(artifact, (2 * artifact["block_m"] + 19, artifact["block_n"] + 9, 272))
    A, B = gradients(rows, k), weights(9, n, k)
    of = scales(artifact["scaling"], rows, 9, n, k)
    for ends in garbage(rows).values():
        offs = torch.tensor(ends, dtype=torch.int32, device="cuda")
        assert_exact(run(artifact, A, B, offs, of), A, B, offs, *by_rows(of, A, B))


@artifacts()
def test_the_bytes_of_a_are_read_as_e5m2_and_those_of_b_as_e4m3(artifact):
    """All finite values of both, each times 1: what another type makes of the same bytes is another number."""
    codes = torch.arange(256, dtype=torch.uint8, device="cuda")
    every_a, every_b = codes.view(E5M2), codes.view(E4M3)
    every_a, every_b = every_a[every_a.float().isfinite()], every_b[every_b.float().isfinite()]
    of = scales(artifact["scaling"], 256, 1, 256, 128, torch.ones)
    of = [one.cuda() for one in of]
    A, B = torch.zeros(256, 128, device="cuda").to(E5M2), torch.zeros(1, 256, 128, device="cuda").to(E4M3)
    A[: len(every_a), 0] = every_a
    B[0, :, 0] = torch.ones(256, device="cuda").to(E4M3)
    C = run(artifact, A, B.mT, as_offs([256]), of).float()
    wanted = every_a.float().to(DTYPES[artifact["out_dtype"]]).float()
    assert torch.equal(C[: len(every_a)], wanted[:, None].expand(-1, 256))
    A = torch.zeros(256, 128, device="cuda").to(E5M2)
    A[:, 0] = torch.ones(256, device="cuda").to(E5M2)
    B[0, :, 0] = torch.zeros(256, device="cuda").to(E4M3)
    B[0, : len(every_b), 0] = every_b
    C = run(artifact, A, B.mT, as_offs([256]), of).float()
    assert torch.equal(C[:, : len(every_b)], every_b.float()[None].expand(256, -1))


@artifacts()
def test_infinity_and_nan_stay_in_their_rows(artifact):
    rows, n, k = legal(artifact, (artifact["block_m"] + 20, artifact["block_n"], 384))
    A, B = torch.ones(rows, k, device="cuda").to(E5M2), torch.ones(2, n, k, device="cuda").to(E4M3).mT
    A[3, 5] = torch.tensor(float("inf")).to(E5M2)
    A[7, 300] = torch.tensor(float("nan")).to(E5M2)
    of = scales(artifact["scaling"], rows, 2, n, k)
    C = run(artifact, A, B, as_offs([rows - 9, 9]), of)
    assert C[3].isinf().all() and C[7].isnan().all()
    rest = [row for row in range(rows) if row not in (3, 7)]
    assert C[rest].isfinite().all()


@pytest.mark.parametrize("mode", ALL_MODES)
@pytest.mark.parametrize("out_dtype", OUTS, ids=str)
def test_errors_against_float64(mode, out_dtype):
    offs, rows, n = as_offs(SIZES), sum(SIZES), 272
    for k in (16, 128, 144, 1008, 1024, 1001, 4096):
        A = (1e-3 * torch.randn(rows, k, device="cuda")).to(E5M2)
        B = (0.25 * torch.randn(len(SIZES), n, k, device="cuda")).to(E4M3).mT
        of = scales(mode, rows, len(SIZES), n, k, lambda shape: 0.5 + torch.rand(shape, device="cuda"))
        C = run(None, A, B, offs, of, out_dtype=out_dtype)
        share = worst_share(C, A, B, offs, *by_rows(of, A, B))
        assert share <= 1, f"K={k}: {share:.2f} of the allowed error"


@pytest.mark.parametrize("mode", ALL_MODES)
@pytest.mark.parametrize("n, k", [(96, 128), (75, 61), (257, 1001)], ids=str)
def test_any_layout(mode, n, k):
    rows, offs = sum(SIZES) + 4, as_offs(SIZES)
    of = scales(mode, rows, len(SIZES), n, k)
    left = [gradients(rows, k), gradients(k, rows).t(), gradients(rows, k + 9)[:, 3 : 3 + k]]
    right = [weights(len(SIZES), n, k), sparse_integers(len(SIZES), k, n, device="cuda")]
    bias = torch.randint(-9, 10, (len(SIZES), n), device="cuda").float()
    for A in left:
        for B in right:
            C = run(None, A, B, offs, of, out_dtype=torch.float32, bias=bias)
            assert_exact(C, A, B, offs, *by_rows(of, A, B), bias=bias)
