"""Every embedded list kernel, forced: right at its tile edges, within its matrices; sm_80 ones through their PTX."""

import pytest

pytest.importorskip("torch")

import gg_runtime
from cases import DTYPES, LIST_ARTIFACTS, List, device_sm, edge_shapes, legal, round_up
from oracle import assert_close, assert_exact, fill_normal, fill_sparse_integers

BY_VALUE_GROUPS = 8  # that every kernel takes in its parameters
SMALL_SHAPES = [(17 + i % 5, 31 + i % 7, 1 + 11 * (i % 9)) for i in range(40)]


def artifacts(chosen=LIST_ARTIFACTS):
    return pytest.mark.parametrize("artifact", chosen, ids=lambda artifact: artifact["name"])


def plans(problem: List, groups: int) -> list:
    """Plans for the list in parts of so many groups."""
    parts = [slice(start, start + groups) for start in range(0, len(problem.A), groups)]
    name = problem.artifact["name"]
    return [gg_runtime.Plan(problem.A[p], problem.B[p], out=problem.C[p], variant=name) for p in parts]


def run_checked(problem: List, planned: list, fill, check) -> None:
    """One run on fresh data and poisoned outputs: the products are right and nothing else was written."""
    fill([*problem.A, *problem.B])
    problem.outputs.poison()
    inputs, outputs = problem.inputs.snapshot(), problem.outputs.snapshot()
    for plan in planned:
        plan.run()
    check(problem.C, problem.A, problem.B)
    assert problem.outputs.stray_writes(outputs) == 0
    assert problem.inputs.unchanged(inputs)


@artifacts()
def test_tile_edges(artifact, arenas):
    problem = List(artifact, edge_shapes(artifact), arenas)
    planned = plans(problem, BY_VALUE_GROUPS)
    assert all(plan.variant == artifact["name"] and plan.by_value for plan in planned)
    run_checked(problem, planned, fill_normal, assert_close)
    run_checked(problem, planned, fill_sparse_integers, assert_exact)


@artifacts()
def test_a_list_in_device_memory(artifact, arenas):
    problem = List(artifact, [legal(artifact, shape) for shape in SMALL_SHAPES], arenas)
    (plan,) = plans(problem, len(SMALL_SHAPES))
    assert not plan.by_value
    run_checked(problem, [plan], fill_sparse_integers, assert_exact)


@artifacts([artifact for artifact in LIST_ARTIFACTS if artifact["kernel"] != "basic"])
def test_tma_takes_any_m_and_k_with_aligned_leading_strides(artifact, arenas):
    block = artifact["block_m"], artifact["block_n"], artifact["block_k"]
    odd = [tuple(size + delta for size in block) for delta in (-1, 1, 5)]
    out_dtype = DTYPES[artifact["out_dtype"]]
    shapes = [(m, round_up(n, out_dtype), k) for m, n, k in [(1, 1, 1), (7, 3, 5), (67, 131, 211), *odd]]
    problem = List(artifact, shapes, arenas)
    run_checked(problem, plans(problem, len(problem.A)), fill_normal, assert_close)


def test_this_gpu_has_kernels_of_its_own():
    own = [a for a in LIST_ARTIFACTS if a["sm"] == device_sm() and a["dtype"] == "fp16"]
    assert {artifact["layout"] for artifact in own} == {"nn", "nt", "tn", "tt", "strided"}
    assert {artifact["alignment"] for artifact in own} == {2, 16}


def test_a_kernel_refuses_a_list_that_breaks_its_promise(arenas):
    for artifact in LIST_ARTIFACTS:
        if artifact["layout"] == "strided":  # it promises nothing
            continue
        dtype = DTYPES[artifact["dtype"]]
        A, B = arenas[0].matrix(64, 64, dtype, (128, 2)), arenas[0].matrix(64, 64, dtype)
        with pytest.raises(ValueError, match=artifact["name"]):
            gg_runtime.Plan([A], [B], out_dtype=DTYPES[artifact["out_dtype"]], variant=artifact["name"])
