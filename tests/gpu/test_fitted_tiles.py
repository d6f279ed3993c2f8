"""Row tiles that fit their group, and plain ones among them: at every height, in any order, on several streams."""

import random

import pytest

torch = pytest.importorskip("torch")

import gg_runtime  # noqa: E402
from capture import captured  # noqa: E402
from cases import DTYPES, RAGGED_ARTIFACTS, legal  # noqa: E402
from oracle import fill_normal, fill_sparse_integers  # noqa: E402
from ragged_cases import Ragged, as_offs, forced, operands, random_sizes, run_checked  # noqa: E402
from ragged_oracle import assert_exact  # noqa: E402

FITTED = [artifact for artifact in RAGGED_ARTIFACTS if artifact["row_step"]]


def artifacts(chosen=FITTED):
    return pytest.mark.parametrize("artifact", chosen, ids=lambda artifact: artifact["name"])


def zero_bias(artifact, B):
    return torch.zeros(B.shape[0], B.shape[2], device="cuda", dtype=DTYPES[artifact["dtype"]])


@pytest.mark.parametrize("empty", [0, 64, 130])
@artifacts()
def test_fitted_tiles_of_every_height(artifact, arenas, empty):
    """Groups of one to three tiles that are as tall as each multiple of the step, or a row less or more than that, with
    NaN behind the last one: what a tile fetches past its rows is another's. Of more than 128 groups tiles are as tall
    as they may be; of fewer, as the last wave asks. With a bias none is plain."""
    heights = range(artifact["row_step"], artifact["block_m"] + 1, artifact["row_step"])
    for tiles in (1, 2, 3):
        sizes = [tiles * height + delta for height in heights for delta in (-1, 0, 1)] + [0] * empty
        rows, n, k = legal(artifact, (sum(sizes) + 70, artifact["block_n"] + 9, 3 * artifact["block_k"] + 9))
        problem = Ragged(artifact, as_offs(sizes), rows, n, k, arenas)
        fill_sparse_integers([problem.A, problem.B])
        problem.A[sum(sizes) :].fill_(float("nan"))
        for others in ({}, {"bias": zero_bias(artifact, problem.B)}):
            problem.outputs.poison()
            problem.run(**others)
            assert_exact(problem.C, problem.A, problem.B, problem.offs)


def near_plain_tiles(seed: int) -> list[int]:
    """Sizes of groups: most a little below a multiple of 128 rows, where tiles are plain; others anywhere, or none."""
    numbers = random.Random(seed)
    below = [0, 0, 1, 7, 33, 63, 64, 65, numbers.randint(0, 600)]
    return [max(128 * numbers.randint(0, 5) - numbers.choice(below), 0) for _ in range(numbers.choice([3, 20, 131]))]


def near_plain(artifact, seed: int, n: int, k: int, tail: int = 0):
    """Operands and an output of such groups, random."""
    transposed = artifact["layout"] == "nt"
    return operands(near_plain_tiles(seed), n, k, DTYPES[artifact["dtype"]], tail, transposed, fill_normal)


def of_fitted_tiles(artifact, A, B, offs):
    """The product without plain tiles: a bias of zeros leaves them out."""
    return forced(artifact, A, B, offs=offs, bias=zero_bias(artifact, B))


@artifacts()
def test_plain_tiles_have_the_bits_of_fitted_ones(artifact):
    """Among fitted ones, before and behind them, with k-tiles of one and more."""
    for seed, k in enumerate((16, 64, 72, 128, 200, 512, 1024, 4096, 456)):
        n = 8 * (20 + 30 * seed)
        A, B, offs, out = near_plain(artifact, seed, n, k, tail=100 * (seed % 2))
        forced(artifact, A, B, offs=offs, out=out)
        assert torch.equal(out, of_fitted_tiles(artifact, A, B, offs)), (seed, n, k)


@artifacts()
def test_plain_tiles_on_streams(artifact):
    """Several products at once, again and again."""
    given = [near_plain(artifact, seed, 1032, 520) for seed in (3, 4, 5, 6)]
    right = [of_fitted_tiles(artifact, *one[:3]) for one in given]
    streams = [torch.cuda.Stream() for _ in given]
    torch.cuda.synchronize()
    for _ in range(10):
        for stream, (A, B, offs, out) in zip(streams, given):
            with torch.cuda.stream(stream):
                out.fill_(float("nan"))
                forced(artifact, A, B, offs=offs, out=out)
        torch.cuda.synchronize()
        assert all(torch.equal(one[3], expected) for one, expected in zip(given, right))


@artifacts()
def test_plain_tiles_in_a_graph_with_other_ends(artifact):
    rows, groups = 6000, 20
    A, B, offs, out = operands(
        [rows // groups] * groups, 1280, 640, DTYPES[artifact["dtype"]], transposed=artifact["layout"] == "nt"
    )
    plan = gg_runtime.Plan(A, B, offs=offs, out=out, variant=artifact["name"])
    graph, _ = captured(plan.run)
    for seed in range(10):
        sizes = [256] * groups if seed % 3 == 0 else random_sizes(groups, rows - 100 * seed, seed)
        offs.copy_(as_offs(sizes))
        out.fill_(float("nan"))
        graph.replay()
        assert_exact(out, A, B, offs)


@pytest.mark.parametrize("groups", [1, 127, 128, 129])
@artifacts()
def test_fitted_tiles_of_any_number(artifact, arenas, groups):
    """Around whole waves, half ones, and none; rows behind the last group are cut in two as well."""
    multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
    for row_tiles in (1, multiprocessors // 2, multiprocessors // 2 + 1, multiprocessors, multiprocessors + 1):
        for behind in (0, 3 * artifact["block_m"] + 5):
            rows = row_tiles * artifact["block_m"] - 3
            sizes = [rows] if groups == 1 else random_sizes(groups, rows, seed=row_tiles)
            shape = legal(artifact, (rows + behind, artifact["block_n"] - 8, 2 * artifact["block_k"] + 9))
            problem = Ragged(artifact, as_offs(sizes), *shape, arenas)
            run_checked(problem, fill_sparse_integers, assert_exact)


@artifacts([artifact for artifact in FITTED if artifact["dtype"] == "bf16"])
def test_more_fitted_tiles_than_the_ctas_that_the_gpu_holds_can_list(artifact):
    multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
    n, k = 64 * artifact["block_n"], 64
    rows = (artifact["listed_tiles"] * multiprocessors // 64 + 5) * artifact["block_m"]
    sizes = [rows // 2, 0, rows // 2 - 70]
    A = torch.randn(rows, k, device="cuda", dtype=torch.bfloat16)
    B = torch.randn(3, *((n, k) if artifact["layout"] == "nt" else (k, n)), device="cuda", dtype=torch.bfloat16)
    B = B.mT if artifact["layout"] == "nt" else B
    C = forced(artifact, A, B, offs=as_offs(sizes))
    for group, start, stop in ((0, 0, sizes[0]), (2, sizes[0], sum(sizes))):
        torch.testing.assert_close(C[start:stop], A[start:stop] @ B[group])
    assert not C[sum(sizes) :].any()


@artifacts([artifact for artifact in FITTED if (artifact["dtype"], artifact["layout"]) == ("bf16", "nt")])
def test_more_plain_tiles_than_a_cta_can_list(artifact):
    """Groups of 640 rows have four fitted row tiles or five plain ones; the host counts the four."""
    ctas = torch.cuda.get_device_properties(0).multi_processor_count
    n_tiles, k = artifact["listed_tiles"] * ctas // 10 + 10, 2304
    A = torch.randn(1280, k, device="cuda", dtype=torch.bfloat16)
    B = torch.randn(2, n_tiles * artifact["block_n"], k, device="cuda", dtype=torch.bfloat16).mT
    C = forced(artifact, A, B, offs=as_offs([640, 640]))
    for group in range(2):
        torch.testing.assert_close(C[640 * group : 640 * (group + 1)], A[640 * group : 640 * (group + 1)] @ B[group])


@pytest.mark.parametrize("groups", [127, 128, 129])
@artifacts([artifact for artifact in FITTED if (artifact["dtype"], artifact["layout"]) == ("bf16", "nt")])
def test_most_rows_behind_the_last_group(artifact, groups):
    """They have as many tiles as a CTA can list, plain ones, and 128 groups are as many as one scan shows: a plan that
    left those rows out of its count had CTAs leave tiles out."""
    rows, n, k, size = 116916, 4096, 1024, 160
    A = torch.randn(rows, k, device="cuda", dtype=torch.bfloat16)
    B = torch.randn(groups, n, k, device="cuda", dtype=torch.bfloat16).mT
    out = torch.full((rows, n), float("nan"), device="cuda", dtype=torch.bfloat16)
    forced(artifact, A, B, offs=as_offs([size] * groups), out=out)
    for group in range(groups):
        here = slice(size * group, size * (group + 1))
        torch.testing.assert_close(out[here], A[here] @ B[group])
    assert not out[size * groups :].any()


@artifacts()
def test_rows_behind_the_last_group_where_k_is_not_whole_16_bytes(artifact):
    """TMA counts in 16 bytes: rows of A, and of B's K, have a pitch of whole ones, and K has not."""
    groups, size, rows, n, k, pitch = 4, 200, 900, 512, 100, 104
    dtype = DTYPES[artifact["dtype"]]
    A = torch.randn(rows, pitch, device="cuda", dtype=dtype)[:, :k]
    B = torch.randn(groups, n, pitch, device="cuda", dtype=dtype)[:, :, :k].mT
    B = B if artifact["layout"] == "nt" else B.contiguous()
    out = torch.full((rows, n), float("nan"), device="cuda", dtype=dtype)
    forced(artifact, A, B, offs=as_offs([size] * groups), out=out)
    for group in range(groups):
        here = slice(size * group, size * (group + 1))
        torch.testing.assert_close(out[here], A[here] @ B[group])
    assert not out[size * groups :].any()
