"""grouped_mm in CUDA graphs: captured once, replayed with any offs that the memory holds by then."""

import random

import pytest

torch = pytest.importorskip("torch")

import fresh_process  # noqa: E402
import gg_runtime  # noqa: E402
from capture import captured, node_count  # noqa: E402
from cases import RAGGED_ARTIFACTS, representatives  # noqa: E402
from oracle import fill_sparse_integers  # noqa: E402
from ragged_cases import forced, operands, random_sizes  # noqa: E402
from ragged_oracle import assert_exact  # noqa: E402

FORMS = {"KN": (128, 96, False), "NK": (128, 96, True), "odd": (75, 61, False)}
GROUPS, ROWS = 16, 300
INT32 = 2**31

FIRST_USE = """
import torch, gg_runtime
if {preload}:
    assert gg_runtime.preload(0) > 0
A = torch.randint(-2, 3, (70, 64), device="cuda").bfloat16()
B = torch.randint(-2, 3, (3, 64, {n}), device="cuda").bfloat16()
offs = torch.tensor([30, 30, 61], dtype=torch.int32, device="cuda")
expected = torch.cat([A[:30] @ B[0], A[30:61] @ B[2], torch.zeros_like(A[61:] @ B[2])])
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    C = gg_runtime.grouped_mm(A, B, offs=offs)
C.fill_(float("nan"))
graph.replay()
torch.cuda.synchronize()
assert torch.equal(C, expected)
assert __import__("sys").modules["triton"] is None
"""


def forms():
    return pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)


def random_ends(seed: int) -> list[int]:
    """Good ones of every kind; each fourth time such as no one should pass."""
    numbers = random.Random(seed)
    if seed % 4 == 3:
        return [numbers.choice([numbers.randrange(-INT32, INT32), numbers.randint(0, ROWS)]) for _ in range(GROUPS)]
    sizes = random_sizes(GROUPS, numbers.randint(0, ROWS), seed, occupied=numbers.choice([0.1, 0.5, 1.0]))
    return [sum(sizes[: group + 1]) for group in range(GROUPS)]


@pytest.mark.parametrize("preload", [False, True], ids=["cold", "preloaded"])
@pytest.mark.parametrize("n", [64, 57])
def test_first_use_in_a_process_may_be_captured(n, preload):
    fresh_process.run(FIRST_USE.format(n=n, preload=preload))


@forms()
def test_replays_take_the_offs_of_the_moment(form):
    n, k, transposed = form
    A, B, offs, out = operands([ROWS] + [0] * (GROUPS - 1), n, k, transposed=transposed)
    graph, C = captured(lambda: gg_runtime.grouped_mm(A, B, offs=offs, out=out))
    assert C is out
    for seed in range(100):
        offs.copy_(torch.tensor(random_ends(seed)))
        out.fill_(float("nan"))
        graph.replay()
        assert_exact(out, A, B, offs)


ROWS_BY_ROW = [artifact for artifact in representatives("bf16", RAGGED_ARTIFACTS) if artifact["layout"] in ("nn", "nt")]


@pytest.mark.parametrize("artifact", ROWS_BY_ROW, ids=lambda artifact: artifact["name"])
def test_replays_of_each_kernel_take_the_offs_of_the_moment(artifact):
    A, B, offs, out = operands([ROWS] + [0] * (GROUPS - 1), 264, 200, transposed=artifact["layout"] == "nt")
    graph, _ = captured(lambda: forced(artifact, A, B, offs=offs, out=out))
    for seed in range(12):
        offs.copy_(torch.tensor(random_ends(seed)))
        out.fill_(float("nan"))
        graph.replay()
        assert_exact(out, A, B, offs)


@forms()
def test_replays_take_the_data_of_the_moment(form):
    n, k, transposed = form
    A, B, offs, _out = operands([40, 0, 61, 1], n, k, tail=3, transposed=transposed)
    bias = torch.zeros(4, n, device="cuda", dtype=A.dtype)
    graph, C = captured(lambda: gg_runtime.grouped_mm(A, B, offs=offs, bias=bias))
    for seed in range(10):
        fill_sparse_integers([A, B, bias], seed)
        C.fill_(float("nan"))
        graph.replay()
        assert_exact(C, A, B, offs, bias=bias)


@forms()
def test_one_launch(form):
    n, k, transposed = form
    A, B, offs, out = operands([40, 0, 61, 1], n, k, transposed=transposed)
    launches = node_count(lambda: gg_runtime.grouped_mm(A, B, offs=offs, out=out))
    assert launches == 1 == gg_runtime.explain(A, B, offs=offs, out=out).launches


@forms()
def test_a_plan_has_the_bits_of_the_call_eager_and_captured(form):
    n, k, transposed = form
    A, B, offs, C = operands(random_sizes(GROUPS, ROWS, 0), n, k, transposed=transposed)
    plan = gg_runtime.Plan(A, B, offs=offs, out=C)
    graph, _ = captured(plan.run)
    for seed in range(4):
        offs.copy_(torch.tensor([min(max(end, -INT32), INT32 - 1) for end in random_ends(seed)]))
        fill_sparse_integers([A, B], seed)
        expected = gg_runtime.grouped_mm(A, B, offs=offs)
        for run in (plan.run, graph.replay):
            C.fill_(float("nan"))
            run()
            assert_exact(C, A, B, offs)
            assert torch.equal(C, expected)
