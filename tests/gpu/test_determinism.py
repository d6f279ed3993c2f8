"""The same bits from run to run, in any stream, thread or graph, beside other work."""

import pytest

torch = pytest.importorskip("torch")

import gg_runtime  # noqa: E402
from cases import representatives  # noqa: E402
from oracle import fill_normal  # noqa: E402

RUNS = 20
SHAPES = [(300, 200, 2000), (128, 512, 512), (64, 64, 64), (1, 1000, 777), (513, 8, 96)]


def make(shapes, transposed_B=False):
    A = [torch.empty(m, k, device="cuda", dtype=torch.float16) for m, n, k in shapes]
    B = [torch.empty(*((n, k) if transposed_B else (k, n)), device="cuda", dtype=torch.float16) for m, n, k in shapes]
    fill_normal([*A, *B])
    return A, [b.t() for b in B] if transposed_B else B


def same_bits(left, right) -> bool:
    return all(torch.equal(x.view(torch.int16), y.view(torch.int16)) for x, y in zip(left, right))


@pytest.mark.parametrize("count", [1, 12])
def test_run_to_run(count):
    A, B = make(SHAPES * count)
    first = gg_runtime.group_gemm(A, B)
    for _ in range(RUNS):
        assert same_bits(gg_runtime.group_gemm(A, B), first)


@pytest.mark.parametrize("artifact", representatives(), ids=lambda artifact: artifact["name"])
def test_each_kernel_run_to_run(artifact):
    sizes = [(256, 128, 1024), (136, 264, 2048)] * 3
    A, B = make(sizes, transposed_B=artifact["layout"][1] == "t")
    if artifact["layout"][0] == "t":
        A = [a.t().contiguous().t() for a in A]
    plan = gg_runtime.Plan(A, B, variant=artifact["name"])
    first = [c.clone() for c in plan.run()]
    for _ in range(RUNS):
        assert same_bits(plan.run(), first)


def test_any_stream_eager_or_captured_and_beside_other_work():
    A, B = make(SHAPES)
    first = gg_runtime.group_gemm(A, B)
    torch.cuda.synchronize()
    other, load = torch.cuda.Stream(), torch.cuda.Stream()
    x = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
    torch.cuda.synchronize()
    with torch.cuda.stream(load):
        for _ in range(50):
            x @ x
    with torch.cuda.stream(other):
        results = [gg_runtime.group_gemm(A, B) for _ in range(RUNS)]
    torch.cuda.synchronize()
    assert all(same_bits(result, first) for result in results)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = gg_runtime.group_gemm(A, B)
    for _ in range(RUNS):
        graph.replay()
        assert same_bits(captured, first)
