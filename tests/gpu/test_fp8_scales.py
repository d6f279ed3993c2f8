"""e4m3 grouped_mm with scales by row and column, and by block, against products in float64."""

import pytest

torch = pytest.importorskip("torch")

import gg_runtime  # noqa: E402
import scaled_oracle  # noqa: E402
from capture import captured  # noqa: E402
from cases import DTYPES, SCALED_ARTIFACTS, device_sm, legal  # noqa: E402
from ragged_cases import as_offs, forced, garbage, random_sizes  # noqa: E402
from scaled_oracle import E4M3, MODES, assert_exact, powers_of_two, shapes, sparse_integers, worst_share  # noqa: E402

pytestmark = pytest.mark.skipif(device_sm() != 90, reason=f"e4m3 kernels are for sm_90, this GPU is sm_{device_sm()}")

OUTS = [torch.float16, torch.bfloat16, torch.float32, E4M3]
DEPTHS = [16, 112, 128, 144, 256, 1008, 1024, 1001, 4096]
SIZES = [40, 0, 1, 67, 130]
OWN = [artifact for artifact in SCALED_ARTIFACTS if artifact["sm"] == device_sm()]


def modes():
    return pytest.mark.parametrize("mode", MODES)


def artifacts():
    return pytest.mark.parametrize("artifact", OWN, ids=lambda artifact: artifact["name"])


def integers(*shape, seed=0):
    return sparse_integers(*shape, device="cuda", seed=seed)


def normal(*shape):
    return (0.25 * torch.randn(shape, device="cuda")).to(E4M3)


def scales(mode, rows, groups, n, k, make=None):
    """scale_a and scale_b: powers of two, or what `make` gives for a shape."""
    make = make or (lambda shape: powers_of_two(shape, "cuda"))
    return tuple(make(shape) for shape in shapes(mode, rows, groups, n, k))


def poisoned(rows, n, dtype):
    return torch.full((rows, n), float("nan"), device="cuda").to(dtype)


def run(artifact, A, B, offs, scale_a, scale_b, **others):
    """By this artifact, or by the library's choice, into a poisoned output."""
    out_dtype = DTYPES[artifact["out_dtype"]] if artifact else others.pop("out_dtype")
    out = poisoned(A.shape[0], B.shape[2], out_dtype)
    given = {"offs": offs, "out": out, "out_dtype": out_dtype, "scale_a": scale_a, "scale_b": scale_b, **others}
    C = forced(artifact, A, B, **given) if artifact else gg_runtime.grouped_mm(A, B, **given)
    assert C is out
    return out


def test_there_are_kernels_to_look_at():
    kernels = {(artifact["addressing"], artifact["scaling"]) for artifact in OWN}
    assert kernels == {(by, mode) for by in ("pointers", "host_descriptors") for mode in MODES}


@artifacts()
def test_tile_edges(artifact):
    block_m, block_n = artifact["block_m"], artifact["block_n"]
    sizes = [0, 1, block_m - 1, 0, block_m, block_m + 1, 2 * block_m, 2 * block_m + 3, 0]
    columns = [1, block_n - 1, block_n, block_n + 1, 2 * block_n + 3, 300]
    for turn, k in enumerate((16, 127, 128, 129, 256, 389, 640, 1024)):
        rows = sum(sizes) + turn % 3 * (block_m - 1)  # none, some or many past the last group
        rows, n, k = legal(artifact, (rows, columns[turn % len(columns)], k))
        A, B, offs = integers(rows, k), integers(len(sizes), n, k).mT, as_offs(sizes[turn:] + sizes[:turn])
        of = scales(artifact["scaling"], rows, len(sizes), n, k)
        assert_exact(run(artifact, A, B, offs, *of), A, B, offs, *of)


@artifacts()
def test_last_tiles_of_few_rows_in_each_turn_of_the_grid(artifact):
    """Bands of each height end with one, and the columns of a band start at another row in another turn."""
    sizes = [tiles * artifact["block_m"] + 9 for tiles in range(10)] * 2
    rows, n, k = legal(artifact, (sum(sizes), 5 * artifact["block_n"], 144))
    A, B, offs = integers(rows, k), integers(len(sizes), n, k).mT, as_offs(sizes)
    of = scales(artifact["scaling"], rows, len(sizes), n, k)
    assert_exact(run(artifact, A, B, offs, *of), A, B, offs, *of)


@artifacts()
@pytest.mark.parametrize("k", [128, 384, 640, 784, 1168])
def test_tile_after_tile_of_a_cta(artifact, k):
    """Fewer k-tiles than scales are copied of at once, and more; the ring goes on where the tile before ended."""
    sizes = [3 * artifact["block_m"] + 9, 0, 5 * artifact["block_m"], 7] * 4
    rows, n, k = legal(artifact, (sum(sizes) + 9, 5 * artifact["block_n"] + 16, k))
    A, B, offs = integers(rows, k), integers(len(sizes), n, k).mT, as_offs(sizes)
    scale_a, scale_b = scales(artifact["scaling"], rows, len(sizes), n, k)
    for of_a in (scale_a, LIES["transposed"](scale_a)):
        assert_exact(run(artifact, A, B, offs, of_a, scale_b), A, B, offs, scale_a, scale_b)


@artifacts()
def test_any_offs_give_the_defined_result(artifact):
    rows, n, k = legal(artifact, (2 * artifact["block_m"] + 19, artifact["block_n"] + 9, 272))
    A, B = integers(rows, k), integers(9, n, k).mT
    of = scales(artifact["scaling"], rows, 9, n, k)
    for ends in garbage(rows).values():
        offs = torch.tensor(ends, dtype=torch.int32, device="cuda")
        assert_exact(run(artifact, A, B, offs, *of), A, B, offs, *of)


@artifacts()
def test_many_groups_of_few_rows(artifact):
    sizes = random_sizes(513, 400, seed=1, occupied=0.3)
    rows, n, k = legal(artifact, (405, 40, 272))
    A, B, offs = integers(rows, k), integers(513, n, k).mT, as_offs(sizes)
    of = scales(artifact["scaling"], rows, 513, n, k)
    assert_exact(run(artifact, A, B, offs, *of), A, B, offs, *of)


@artifacts()
def test_nan_and_infinite_scales_that_no_group_has_stay_there(artifact):
    """Of rows past the last end, which are zeros, and of a group without rows."""
    sizes, tail = [artifact["block_m"] + 3, 0, 5], artifact["block_m"] + 9
    rows, n, k = legal(artifact, (sum(sizes) + tail, artifact["block_n"] + 9, 272))
    A, B, offs = integers(rows, k), integers(3, n, k).mT, as_offs(sizes)
    scale_a, scale_b = scales(artifact["scaling"], rows, 3, n, k)
    right, _ = scaled_oracle.product(A, B, offs, scale_a, scale_b)
    for bad in (float("nan"), float("inf")):
        scale_a[sum(sizes) :] = bad
        scale_b[1] = bad
        C = run(artifact, A, B, offs, scale_a, scale_b)
        assert torch.equal(C.float(), scaled_oracle.rounded(right, C.dtype).float())


@artifacts()
def test_a_nan_scale_stays_in_its_row_and_its_columns(artifact):
    rows, n, k = legal(artifact, (artifact["block_m"] + 20, 2 * artifact["block_n"], 512))
    A = torch.ones(rows, k, device="cuda").to(E4M3)
    B, offs = torch.ones(2, n, k, device="cuda").to(E4M3).mT, as_offs([rows - 9, 9])
    if artifact["out_dtype"] == "e4m3":
        pytest.skip("what is no number is told apart in the other outputs")
    scale_a, scale_b = scales(artifact["scaling"], rows, 2, n, k)
    scale_a[7] = float("nan")
    scale_b[1, 0] = float("nan")
    C = run(artifact, A, B, offs, scale_a, scale_b)
    columns = 1 if artifact["scaling"] == "row" else 128
    wrong = torch.zeros(rows, n, dtype=torch.bool, device="cuda")
    wrong[7] = True
    wrong[rows - 9 :, :columns] = True
    assert torch.equal(C.isnan(), wrong)


@modes()
@pytest.mark.parametrize("out_dtype", OUTS, ids=str)
def test_errors_against_float64(mode, out_dtype):
    offs, rows, n = as_offs(SIZES), sum(SIZES), 272
    for k in DEPTHS:
        A, B = normal(rows, k), normal(len(SIZES), n, k).mT
        of = scales(mode, rows, len(SIZES), n, k, lambda shape: 0.5 + 1.5 * torch.rand(shape, device="cuda"))
        share = worst_share(run(None, A, B, offs, *of, out_dtype=out_dtype), A, B, offs, *of)
        assert share <= 1, f"K={k}: {share:.2f} of the allowed error"


@artifacts()
def test_errors_against_float64_of_each_kernel(artifact):
    rows, n, k = legal(artifact, (sum(SIZES), 272, 1040))
    A, B, offs = normal(rows, k), normal(len(SIZES), n, k).mT, as_offs(SIZES)
    of = scales(artifact["scaling"], rows, len(SIZES), n, k, lambda shape: 0.5 + torch.rand(shape, device="cuda"))
    share = worst_share(run(artifact, A, B, offs, *of), A, B, offs, *of)
    assert share <= 1, f"{share:.2f} of the allowed error"


@artifacts()
def test_zero_and_huge_scales(artifact):
    """A factor is that of the row times that of the column: 2**100 and 2**-100 make 1."""
    rows, n, k = legal(artifact, (artifact["block_m"] + 5, artifact["block_n"] + 16, 400))
    A, B, offs = integers(rows, k), integers(2, n, k).mT, as_offs([rows - 3, 3])
    scale_a, scale_b = scales(artifact["scaling"], rows, 2, n, k)
    scale_a.mul_(2.0**100)
    scale_b.mul_(2.0**-100)
    scale_a[3], scale_b[1] = 0, 0
    C = run(artifact, A, B, offs, scale_a, scale_b)
    assert_exact(C, A, B, offs, scale_a, scale_b)
    assert not C[3].float().any() and not C[rows - 3 :].float().any()


LIES = {
    "as it is": lambda t: t,
    "transposed": lambda t: t.mT.contiguous().mT if t.ndim > 1 else t,
    "every second": lambda t: torch.stack([t, torch.full_like(t, float("nan"))], -1).flatten(-2)[..., ::2],
    "one behind": lambda t: torch.cat([torch.full((1,), float("nan"), device="cuda"), t.flatten()])[1:].view(t.shape),
    "backward in memory": lambda t: t.transpose(0, -1).contiguous().transpose(0, -1) if t.ndim > 1 else t,
}


@artifacts()
@pytest.mark.parametrize("lies", LIES)
def test_scales_are_read_where_they_lie(artifact, lies):
    rows, n, k = legal(artifact, (150, 400, 1040))
    A, B, offs = integers(rows, k), integers(3, n, k).mT, as_offs([70, 0, 75])
    of = scales(artifact["scaling"], rows, 3, n, k)
    C = run(artifact, A, B, offs, *(LIES[lies](one) for one in of))
    assert_exact(C, A, B, offs, *of)


@artifacts()
def test_one_scale_for_many_has_a_stride_of_zero(artifact):
    rows, n, k = legal(artifact, (150, 400, 1040))
    A, B, offs = integers(rows, k), integers(3, n, k).mT, as_offs([70, 0, 75])
    of_a, of_b = shapes(artifact["scaling"], rows, 3, n, k)
    of = torch.full((), 0.5, device="cuda").expand(of_a), torch.full((), 4.0, device="cuda").expand(of_b)
    assert_exact(run(artifact, A, B, offs, *of), A, B, offs, *of)


@modes()
@pytest.mark.parametrize("n, k", [(96, 128), (75, 61), (1, 3), (257, 1001)], ids=str)
def test_any_layout(mode, n, k):
    rows, offs = sum(SIZES) + 4, as_offs(SIZES)
    of = scales(mode, rows, len(SIZES), n, k)
    left = [
        integers(rows, k),
        integers(k, rows).t(),
        integers(rows, k + 9)[:, 3 : 3 + k],
        integers(rows, 2 * k)[:, ::2],
    ]
    right = [integers(len(SIZES), n, k).mT, integers(len(SIZES), k, n), integers(1, n, k).mT.expand(len(SIZES), k, n)]
    for A in left:
        for B in right:
            assert_exact(run(None, A, B, offs, *of, out_dtype=torch.float32), A, B, offs, *of)


@modes()
def test_a_bias_is_added_to_the_scaled_sum(mode):
    rows, n, k = sum(SIZES) + 2, 272, 400
    A, B, offs = integers(rows, k), integers(len(SIZES), n, k).mT, as_offs(SIZES)
    of = scales(mode, rows, len(SIZES), n, k)
    bias = torch.randint(-9, 10, (len(SIZES), n), device="cuda").to(torch.bfloat16)
    C = run(None, A, B, offs, *of, bias=bias, out_dtype=torch.bfloat16)
    assert_exact(C, A, B, offs, *of, bias=bias)


@modes()
def test_an_activation_follows_the_scaled_sum(mode):
    A, B, offs = integers(sum(SIZES), 256), integers(len(SIZES), 256, 256).mT, as_offs(SIZES)
    of = scales(mode, A.shape[0], len(SIZES), 256, 256)
    given = {"offs": offs, "scale_a": of[0], "scale_b": of[1]}
    z = gg_runtime.grouped_mm(A, B, **given).float()
    h = gg_runtime.grouped_mm(A, B, activation="swiglu", **given).float()
    expected = torch.nn.functional.silu(z[:, :128]) * z[:, 128:]
    torch.testing.assert_close(h, expected, rtol=2**-7, atol=2**-7)


@modes()
def test_a_graph_and_a_plan_read_offs_and_scales_of_the_moment(mode):
    A, B, offs = integers(sum(SIZES), 384), integers(len(SIZES), 96, 384).mT, as_offs(SIZES)
    scale_a, scale_b = scales(mode, A.shape[0], len(SIZES), 96, 384)
    given = {"offs": offs, "scale_a": scale_a, "scale_b": scale_b}
    graph, C = captured(lambda: gg_runtime.grouped_mm(A, B, **given))
    plan = gg_runtime.Plan(A, B, **given)
    for turn, ends in enumerate(([40, 40, 41, 108, 238], [0, 100, 100, 108, 200], [5, 3, 2, -1, 6], [1, 2, 3, 4, 5])):
        offs.copy_(torch.tensor(ends))
        scale_a.copy_(powers_of_two(scale_a.shape, "cuda", seed=turn))
        scale_b.copy_(powers_of_two(scale_b.shape, "cuda", seed=turn + 9))
        for out, again in ((C, graph.replay), (plan.out, plan.run)):
            out.fill_(float("nan"))
            again()
            assert_exact(out, A, B, offs, scale_a, scale_b)


@modes()
def test_batch_invariant_bits_and_bits_from_run_to_run(mode):
    n, k = 256, 1024
    A, B = normal(300, k), normal(3, n, k).mT
    scale_a, scale_b = scales(mode, 300, 3, n, k, lambda shape: 0.5 + torch.rand(shape, device="cuda"))
    whole = [run(None, A, B, as_offs([100, 100, 100]), scale_a, scale_b, out_dtype=torch.float32, batch_invariant=True)
             for _ in range(3)]  # fmt: skip
    assert torch.equal(whole[0], whole[1]) and torch.equal(whole[0], whole[2])
    for first, count in ((0, 1), (3, 17), (0, 100)):
        rows = slice(first, first + count)
        offs = as_offs([count, 0, 0])
        part = run(None, A[rows], B, offs, scale_a[rows], scale_b, out_dtype=torch.float32, batch_invariant=True)
        assert torch.equal(part, whole[0][rows])


@modes()
def test_sizes_of_zero(mode):
    for rows, n, k in ((0, 96, 128), (20, 0, 128), (20, 96, 0)):
        A, B = integers(rows, k), integers(3, n, k).mT
        of = scales(mode, rows, 3, n, k)
        C = run(None, A, B, as_offs([5, 5, rows - 10 if rows else 0]), *of, out_dtype=torch.bfloat16)
        assert C.shape == (rows, n) and not C.float().any()
