"""Many threads: at the first use in a process, and from then on."""

import functools

import pytest

torch = pytest.importorskip("torch")

import fresh_process  # noqa: E402
import gg_runtime  # noqa: E402
from cases import row_major  # noqa: E402
from oracle import exact_products, fill_sparse_integers  # noqa: E402
from threads import in_threads  # noqa: E402

FIRST_USE = """
import torch, gg_runtime
from threads import in_threads

seeds = range(8)
A = [torch.randint(-2, 3, (30 + seed, 72), device="cuda").half() for seed in seeds]
B = [torch.randint(-2, 3, (72, 64 if seed % 2 else 57), device="cuda").half() for seed in seeds]
expected = [a @ b for a, b in zip(A, B)]
streams = [torch.cuda.Stream() for seed in seeds]
torch.cuda.synchronize()

def work(seed):
    with torch.cuda.stream(streams[seed]):
        (C,) = gg_runtime.group_gemm([A[seed]], [B[seed]])
        assert torch.equal(C, expected[seed]), seed

in_threads(work)
"""


def test_first_use_in_eight_threads_at_once():
    fresh_process.run(FIRST_USE)


def test_steady_use_in_eight_threads():
    def work(seed):
        sizes = [(20 + seed, 40, 60), (64, 8 * seed + 8, 96)] * (1 if seed % 2 else 20)
        with torch.cuda.stream(torch.cuda.Stream()):
            A, B = row_major(sizes, fill=functools.partial(fill_sparse_integers, seed=seed))
            expected = exact_products(A, B)
            plan = gg_runtime.Plan(A, B)
            for _ in range(50):
                results = [*gg_runtime.group_gemm(A, B), *plan.run()]
                assert all(torch.equal(c, e) for c, e in zip(results, expected * 2))

    in_threads(work)


def test_one_plan_shared_by_eight_threads():
    A, B = row_major([(100, 60, 80)] * 40)
    expected = exact_products(A, B)
    plan = gg_runtime.Plan(A, B)
    torch.cuda.synchronize()
    in_threads(lambda _: [plan.run() for _ in range(100)])
    torch.cuda.synchronize()
    assert all(torch.equal(c, e) for c, e in zip(plan.out, expected))


def test_layers_of_several_threads_share_a_workspace_on_one_stream():
    torch.manual_seed(0)
    tokens, k, experts, hidden, inner = 96, 2, 4, 64, 32
    sizes = tokens, k, experts, hidden, inner
    w1 = torch.randn(experts, hidden, 2 * inner, device="cuda").half() / 8
    w2 = torch.randn(experts, inner, hidden, device="cuda").half() / 6
    workspace = torch.empty(gg_runtime.fused_experts_workspace(*sizes), device="cuda", dtype=torch.uint8)
    weights = torch.rand(tokens, k, device="cuda")
    given = [
        (torch.randn(tokens, hidden, device="cuda").half(), torch.randint(experts, (tokens, k), device="cuda"))
        for _ in range(4)
    ]

    def layer(seed, **options):
        x, ids = given[seed]
        return gg_runtime.fused_experts(x, w1, w2, weights, ids, **options)

    expected = [layer(seed) for seed in range(4)]
    outputs = [torch.empty_like(one) for one in expected]
    torch.cuda.synchronize()

    def work(seed):
        for _ in range(20):
            layer(seed, out=outputs[seed], workspace=workspace)

    in_threads(work, 4)
    torch.cuda.synchronize()
    assert all(torch.equal(out, right) for out, right in zip(outputs, expected))
