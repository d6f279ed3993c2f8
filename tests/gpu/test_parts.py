"""Lists with groups that TMA cannot take, which two launches multiply: exact, in a graph too, nothing else written."""

import pytest

torch = pytest.importorskip("torch")

import gg_runtime  # noqa: E402
from capture import captured  # noqa: E402
from cases import device_sm, row_major  # noqa: E402
from oracle import assert_exact, fill_sparse_integers  # noqa: E402

pytestmark = pytest.mark.skipif(device_sm() != 90, reason="only sm_90 has kernels that use TMA")
LISTS = {
    "N = 7": [(512, 7 if i == 17 else 512, 512) for i in range(64)],
    "K = 0": [(1024, 1024, 0 if i == 3 else 1024) for i in range(12)],
    "unlike": [(512 + 8 * (i % 9), 512 + 8 * (i % 5) + (i % 8 == 0), 512 + 8 * (i % 7)) for i in range(100)],
}


@pytest.mark.parametrize("shapes", LISTS.values(), ids=LISTS.keys())
def test_two_launches_give_every_product(shapes, arenas):
    inputs, outputs = arenas
    A = [inputs.matrix(m, k, torch.float16) for m, n, k in shapes]
    B = [inputs.matrix(k, n, torch.float16) for m, n, k in shapes]
    C = [outputs.matrix(m, n, torch.float16) for m, n, k in shapes]
    fill_sparse_integers([*A, *B])
    outputs.poison()
    before = outputs.snapshot()
    plan = gg_runtime.Plan(A, B, out=C)
    assert plan.launches == 2
    assert_exact(plan.run(), A, B)
    outputs.poison()
    assert_exact(gg_runtime.group_gemm(A, B, out=C), A, B)
    assert outputs.stray_writes(before) == 0


@pytest.mark.parametrize("shapes", LISTS.values(), ids=LISTS.keys())
def test_both_launches_are_in_a_captured_graph(shapes):
    A, B = row_major(shapes)
    graph, C = captured(lambda: gg_runtime.group_gemm(A, B))
    for seed in range(5):
        fill_sparse_integers([*A, *B], seed)
        for c in C:
            c.fill_(float("nan"))
        graph.replay()
        assert_exact(C, A, B)
