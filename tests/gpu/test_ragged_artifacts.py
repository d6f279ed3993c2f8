"""Every embedded ragged kernel, forced: right at its tile edges and for any offs; the sm_80 ones through their PTX."""

import random

import pytest

torch = pytest.importorskip("torch")

import gg_runtime  # noqa: E402
from capture import captured  # noqa: E402
from cases import DTYPES, RAGGED_ARTIFACTS, device_sm, legal, round_up  # noqa: E402
from oracle import fill_normal, fill_sparse_integers  # noqa: E402
from ragged_cases import (  # noqa: E402
    Ragged,
    as_offs,
    edge_forms,
    forced,
    garbage,
    operands,
    random_sizes,
    run_checked,
)
from ragged_oracle import assert_close, assert_exact  # noqa: E402


def artifacts(chosen=RAGGED_ARTIFACTS):
    return pytest.mark.parametrize("artifact", chosen, ids=lambda artifact: artifact["name"])


@artifacts()
def test_tile_edges(artifact, arenas):
    for sizes, *form in edge_forms(artifact):
        problem = Ragged(artifact, as_offs(sizes), *form, arenas)
        run_checked(problem, fill_normal, assert_close)
        run_checked(problem, fill_sparse_integers, assert_exact)


@artifacts()
def test_any_offs_give_the_defined_result(artifact, arenas):
    m, n, k = 2 * artifact["block_m"] + 19, artifact["block_n"] + 9, artifact["block_k"] + 9
    rows, n, k = legal(artifact, (m, n, k))
    problem = Ragged(artifact, [0] * 9, rows, n, k, arenas)
    for ends in garbage(rows).values():
        problem.offs.copy_(torch.tensor(ends))
        run_checked(problem, fill_sparse_integers, assert_exact)


@artifacts()
def test_nan_of_rows_and_matrices_that_no_group_has_stays_there(artifact, arenas):
    """They are fetched with the others' tiles, or instead of any."""
    sizes, tail = [artifact["block_m"] + 3, 0, 5], artifact["block_m"] + 9
    for k in (9, 5 * artifact["block_k"] + 9):
        problem = Ragged(
            artifact, as_offs(sizes), *legal(artifact, (sum(sizes) + tail, artifact["block_n"] + 9, k)), arenas
        )
        fill_sparse_integers([problem.A, problem.B])
        for unused in (problem.A[sum(sizes) :], problem.B[1]):
            unused.copy_(torch.full(unused.shape, float("nan"), device="cuda"))
        problem.outputs.poison()
        problem.run()
        assert_exact(problem.C, problem.A, problem.B, problem.offs)


FITTED = [artifact for artifact in RAGGED_ARTIFACTS if artifact["row_step"]]


def zero_bias(artifact, B):
    return torch.zeros(B.shape[0], B.shape[2], device="cuda", dtype=DTYPES[artifact["dtype"]])


@pytest.mark.parametrize("empty", [0, 64, 130])
@artifacts(FITTED)
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


@artifacts(FITTED)
def test_plain_tiles_have_the_bits_of_fitted_ones(artifact):
    """Among fitted ones, before and behind them, with k-tiles of one and more; a bias of zeros leaves them out."""
    for seed, k in enumerate((16, 64, 72, 128, 200, 512, 1024, 4096)):
        sizes, n = near_plain_tiles(seed), 8 * (20 + 30 * seed)
        A, B, offs, out = operands(
            sizes, n, k, DTYPES[artifact["dtype"]], 100 * (seed % 2), artifact["layout"] == "nt", fill_normal
        )
        forced(artifact, A, B, offs=offs, out=out)
        assert torch.equal(out, forced(artifact, A, B, offs=offs, bias=zero_bias(artifact, B))), (sizes, n, k)


@artifacts(FITTED)
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
@artifacts(FITTED)
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


@artifacts()
def test_more_groups_than_any_block_of_the_search(artifact, arenas):
    groups, rows = 513, 400
    sizes = random_sizes(groups, rows, seed=1, occupied=0.3)
    problem = Ragged(artifact, as_offs(sizes), *legal(artifact, (rows + 5, 33, 17)), arenas)
    run_checked(problem, fill_sparse_integers, assert_exact)


@artifacts([artifact for artifact in RAGGED_ARTIFACTS if artifact["kernel"] == "hopper_ragged"])
def test_tma_takes_any_rows_and_k_with_aligned_strides(artifact, arenas):
    block = artifact["block_m"], artifact["block_n"], artifact["block_k"]
    odd = [tuple(size + delta for size in block) for delta in (-1, 1, 5)]
    for rows, n, k in [(1, 1, 1), (7, 3, 5), (67, 131, 211), *odd]:
        offs = [rows // 4, rows // 4, rows // 2 + 1, rows]
        problem = Ragged(artifact, offs, rows, round_up(n, DTYPES[artifact["out_dtype"]]), k, arenas)
        run_checked(problem, fill_normal, assert_close)


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_this_gpu_has_ragged_kernels_of_its_own(dtype):
    own = [a for a in RAGGED_ARTIFACTS if a["sm"] == device_sm() and a["dtype"] == dtype]
    assert {artifact["layout"] for artifact in own} == {"nn", "nt", "tn", "tt", "strided"}
    assert {artifact["alignment"] for artifact in own} == {2, 16}


def test_a_kernel_refuses_operands_that_break_its_promise(arenas):
    offs = as_offs([64, 64])
    for artifact in RAGGED_ARTIFACTS:
        if artifact["layout"] == "strided":  # it promises nothing
            continue
        dtype, out_dtype = DTYPES[artifact["dtype"]], DTYPES[artifact["out_dtype"]]
        A, B = arenas[0].matrix(128, 64, dtype, (128, 2)), arenas[0].array((2, 64, 64), dtype, (4096, 64, 1))
        with pytest.raises(ValueError, match=artifact["name"]):
            forced(artifact, A, B, offs=offs, out_dtype=out_dtype)
