"""Every embedded ragged kernel, forced: right at its tile edges and for any offs; the sm_80 ones through their PTX."""

import pytest

torch = pytest.importorskip("torch")

from cases import DTYPES, RAGGED_ARTIFACTS, device_sm, legal, round_up  # noqa: E402
from oracle import fill_normal, fill_sparse_integers  # noqa: E402
from ragged_cases import (  # noqa: E402
    Ragged,
    as_offs,
    edge_forms,
    forced,
    garbage,
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
