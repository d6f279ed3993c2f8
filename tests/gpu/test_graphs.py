"""CUDA graphs: captured at first use or later, replayed with new data, the same bits as an eager call."""

import pytest

torch = pytest.importorskip("torch")

import fresh_process  # noqa: E402
import gg_runtime  # noqa: E402
from capture import captured, node_count  # noqa: E402
from cases import row_major  # noqa: E402
from oracle import assert_exact, fill_normal, fill_sparse_integers  # noqa: E402

SIZES = {
    "aligned": [(64, 128, 256), (128, 64, 64), (8, 8, 8)],
    "odd": [(33, 57, 91), (1, 7, 300)],
    "packed": [(24, 40, 56)] * 64,
}

FIRST_USE = """
import torch, gg_runtime
count, preload = {count}, {preload}
A = [torch.randint(-2, 3, (40 + i % 7, 64), device="cuda").half() for i in range(count)]
B = [torch.randint(-2, 3, (64, 56), device="cuda").half() for i in range(count)]
expected = [a @ b for a, b in zip(A, B)]
if preload:
    assert gg_runtime.preload(0) > 0
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    C = gg_runtime.group_gemm(A, B)
for c in C:
    c.fill_(float("nan"))
graph.replay()
torch.cuda.synchronize()
assert all(torch.equal(c, e) for c, e in zip(C, expected))
assert __import__("sys").modules["triton"] is None
"""


def lists():
    return pytest.mark.parametrize("shapes", SIZES.values(), ids=SIZES.keys())


@pytest.mark.parametrize("preload", [False, True], ids=["cold", "preloaded"])
@pytest.mark.parametrize("count", [4, 64])
def test_first_use_in_a_process_may_be_captured(count, preload):
    fresh_process.run(FIRST_USE.format(count=count, preload=preload))


@lists()
def test_replays_take_the_data_of_the_moment(shapes):
    A, B = row_major(shapes)
    graph, C = captured(lambda: gg_runtime.group_gemm(A, B))
    for seed in range(20):
        fill_sparse_integers([*A, *B], seed)
        for c in C:
            c.fill_(float("nan"))
        graph.replay()
        assert_exact(C, A, B)


@lists()
def test_a_replay_gives_the_bits_of_an_eager_call(shapes):
    A, B = row_major(shapes, fill=fill_normal)
    eager = gg_runtime.group_gemm(A, B)
    graph, C = captured(lambda: gg_runtime.group_gemm(A, B))
    graph.replay()
    assert all(torch.equal(c, e) for c, e in zip(C, eager))


@lists()
@pytest.mark.parametrize("planned", ["before", "during"])
def test_a_plan_runs_in_a_capture(shapes, planned):
    A, B = row_major(shapes)
    plans = [gg_runtime.Plan(A, B)] if planned == "before" else []
    torch.cuda.synchronize()

    def call():
        if not plans:
            plans.append(gg_runtime.Plan(A, B))
        return plans[0].run()

    graph, C = captured(call)
    for _ in range(3):
        for c in C:
            c.fill_(float("nan"))
        graph.replay()
        assert_exact(C, A, B)


@lists()
def test_a_captured_list_does_not_depend_on_memory_that_the_caller_reuses(shapes):
    A, B = row_major(shapes)
    graph, C = captured(lambda: gg_runtime.group_gemm(A, B))
    dirt = [torch.full((1 << 16,), float("nan"), device="cuda", dtype=torch.float16) for _ in range(64)]
    for _ in range(3):
        graph.replay()
    assert_exact(C, A, B)
    del dirt


@lists()
def test_one_launch_besides_pack(shapes):
    A, B = row_major(shapes)
    out = [torch.empty(m, n, device="cuda", dtype=torch.float16) for m, n, _ in shapes]
    by_value = gg_runtime.Plan(A, B, out=out).by_value
    launches = node_count(lambda: gg_runtime.group_gemm(A, B, out=out))
    assert launches == gg_runtime.explain(A, B, out=out).launches
    assert by_value == (len(shapes) < 64) == (launches == 1)
