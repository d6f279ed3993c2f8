"""Products of stacks, batched and masked: every embedded kernel, forced, and calls with any strides and counts."""

import itertools
import random

import pytest

torch = pytest.importorskip("torch")

import gg_runtime  # noqa: E402
from capture import captured, node_count  # noqa: E402
from cases import DTYPES, STACK_ARTIFACTS, device_sm  # noqa: E402
from guarded_buffer import INTEGERS  # noqa: E402
from oracle import fill_normal, fill_sparse_integers, sparse_integers  # noqa: E402
from ragged_cases import forced  # noqa: E402
from stack_cases import (  # noqa: E402
    AS_IT_WAS,
    Stack,
    assert_activated,
    assert_close,
    assert_exact,
    is_gated,
    legal,
    orders,
)
from up_projection_oracle import CASES  # noqa: E402

INT32 = 2**31


def artifacts(chosen=STACK_ARTIFACTS):
    return pytest.mark.parametrize("artifact", chosen, ids=lambda artifact: artifact["name"])


def edges(artifact):
    """(M, N, K, counts) around the artifact's own tile edges."""
    block_m, block_n, block_k = artifact["block_m"], artifact["block_n"], artifact["block_k"]
    columns = itertools.cycle((1, block_n - 1, block_n, block_n + 1, 2 * block_n + 3))
    depths = itertools.cycle((1, block_k - 1, block_k, block_k + 1, 3 * block_k + 5, 7 * block_k))
    for m in (1, block_m - 1, block_m, block_m + 1, 2 * block_m + 3):
        for counts in (None, [m, 0, 1, m // 2], [m - 1, m, m, max(m - 1, 1)]):
            yield *legal(artifact, m, next(columns), next(depths)), counts


@artifacts()
def test_tile_edges(artifact, arenas):
    chosen = itertools.cycle(orders(artifact))
    for m, n, k, counts in edges(artifact):
        for arena in arenas:
            arena.reset()
        stack = Stack(artifact, 4, m, n, k, arenas, next(chosen))
        stack.run_checked(fill_sparse_integers, counts)
        stack.run_checked(fill_normal, counts)


@artifacts([artifact for artifact in STACK_ARTIFACTS if is_gated(artifact)])
def test_every_order_and_activation(artifact, arenas):
    m, n, k = legal(artifact, artifact["block_m"] + 3, artifact["block_n"] + 32, 2 * artifact["block_k"] + 8)
    for order, activation in itertools.product(orders(artifact), ("swiglu", "geglu", "geglu_tanh", "swiglu_oai")):
        for arena in arenas:
            arena.reset()
        stack = Stack(artifact, 3, m, n, k, arenas, order)
        stack.activation = activation
        stack.run_checked(fill_sparse_integers, [m, 0, 7])
        stack.run_checked(fill_sparse_integers)


@artifacts([artifact for artifact in STACK_ARTIFACTS if is_gated(artifact)])
def test_gate_and_up_are_limited(artifact, arenas):
    m, n, k = legal(artifact, artifact["block_m"] + 3, artifact["block_n"] + 32, 2 * artifact["block_k"] + 8)
    for activation in ("swiglu", "swiglu_oai"):
        for arena in arenas:
            arena.reset()
        stack = Stack(artifact, 3, m, n, k, arenas, orders(artifact)[0])
        stack.activation, stack.limit = activation, 2.5
        stack.run_checked(fill_sparse_integers, [m, 0, 7])


@artifacts()
def test_any_counts_give_the_defined_result(artifact, arenas):
    m, n, k = legal(artifact, 2 * artifact["block_m"] + 19, artifact["block_n"] + 9, artifact["block_k"] + 9)
    numbers = random.Random(m)
    stack = Stack(artifact, 9, m, n, k, arenas, orders(artifact)[0])
    for counts in (
        [-1, -5, -INT32, 3, 7, -7, 9, 9, -1],
        [m + 1, INT32 - 1, m, 0, INT32 - 1, m - 1, m + 99, 1, 2],
        [INT32 - 1] * 9,
        [-INT32] * 9,
        [0] * 9,
        [numbers.randint(-3, m + 3) for _ in range(9)],
        [numbers.randrange(-INT32, INT32) for _ in range(9)],
    ):
        stack.run_checked(fill_sparse_integers, counts)


@artifacts()
def test_nan_of_groups_without_rows_and_of_rows_past_a_count_stays_there(artifact, arenas):
    """They are fetched with the others' tiles, or instead of any. run_checked puts NaN past each count."""
    m = 2 * artifact["block_m"] + 5
    for k in (9, 5 * artifact["block_k"] + 9):
        for arena in arenas:
            arena.reset()
        stack = Stack(artifact, 4, *legal(artifact, m, artifact["block_n"] + 9, k), arenas, orders(artifact)[0])
        fill_sparse_integers([stack.A, stack.B])
        stack.counts.copy_(torch.tensor([artifact["block_m"] + 3, 0, 5, 0]))
        for group, count in enumerate(stack.counts.tolist()):
            past = stack.A[group, count:]
            past.copy_(torch.full(past.shape, float("nan"), device="cuda"))
        for group in (1, 3):
            stack.B[group].copy_(torch.full(stack.B[group].shape, float("nan"), device="cuda"))
        stack.C.fill_(AS_IT_WAS)
        stack.run(stack.counts)
        if is_gated(artifact):
            assert_activated(stack.C, stack.A, stack.B, stack.counts, None, stack.activation, stack.order)
        else:
            assert_exact(stack.C, stack.A, stack.B, stack.counts)


@artifacts()
@pytest.mark.parametrize("groups", [128, 129, 300])
def test_more_groups_than_any_scan_window(artifact, arenas, groups):
    m, n, k = legal(artifact, 9, 33, 17)
    numbers = random.Random(groups)
    stack = Stack(artifact, groups, m, n, k, arenas, orders(artifact)[0])
    stack.run_checked(fill_sparse_integers, [numbers.choice([0, 0, 0, 1, 2, m]) for _ in range(groups)])
    stack.run_checked(fill_sparse_integers, [0] * (groups - 1) + [m])
    stack.run_checked(fill_sparse_integers)


@artifacts()
def test_one_group(artifact, arenas):
    m, n, k = legal(artifact, artifact["block_m"] + 1, artifact["block_n"] + 1, artifact["block_k"] + 1)
    stack = Stack(artifact, 1, m, n, k, arenas, orders(artifact)[0])
    for counts in (None, [m], [1], [0]):
        stack.run_checked(fill_sparse_integers, counts)


@artifacts()
def test_the_bits_are_the_same_from_run_to_run(artifact, arenas):
    m, n, k = legal(artifact, 3 * artifact["block_m"] + 7, 2 * artifact["block_n"] + 9, 9 * artifact["block_k"] + 9)
    stack = Stack(artifact, 11, m, n, k, arenas, orders(artifact)[0])
    fill_normal([stack.A, stack.B])
    stack.counts.copy_(torch.tensor([m, 0, 1, m - 1, m // 2, m, 3, m // 3, 0, m, 9]))
    for counts in (None, stack.counts):
        found = []
        for _ in range(5):
            stack.C.fill_(AS_IT_WAS)
            stack.run(counts)
            found.append(stack.C.contiguous().view(INTEGERS[2]))
        assert all(torch.equal(found[0], other) for other in found[1:])


@artifacts([artifact for artifact in STACK_ARTIFACTS if not is_gated(artifact)])
def test_as_torch_bmm_in_float64(artifact):
    """Sizes of layers, with tensors as torch makes them."""
    dtype, layout = DTYPES[artifact["dtype"]], artifact["layout"]
    A = torch.randn(5, 320, 1024, device="cuda").to(dtype)
    B = torch.randn(5, 1024, 768, device="cuda").to(dtype)
    if layout[0] == "t":
        A = A.mT.contiguous().mT
    if layout in ("nt", "tt"):
        B = B.mT.contiguous().mT
    C = forced(artifact, A, B)
    assert_close(C, A, B)
    off = (C.double() - torch.bmm(A.double(), B.double())).abs().max()
    assert off <= 0.6 * torch.finfo(dtype).eps * 200  # |sums| stay below 200, and are rounded once


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_this_gpu_has_kernels_of_its_own(dtype):
    own = [a for a in STACK_ARTIFACTS if a["sm"] == device_sm() and a["dtype"] == dtype and not is_gated(a)]
    assert {artifact["layout"] for artifact in own} == {"nn", "nt", "tn", "tt", "strided"}
    assert {artifact["alignment"] for artifact in own} == {2, 16}


def test_a_kernel_refuses_operands_that_break_its_promise(arenas):
    for artifact in STACK_ARTIFACTS:
        if artifact["layout"] == "strided" or artifact["alignment"] < 16:  # those promise little or nothing
            continue
        dtype = DTYPES[artifact["dtype"]]
        given = {"activation": "swiglu" if is_gated(artifact) else None, "gate_up": orders(artifact)[0]}
        A = arenas[0].array((2, 64, 64), dtype, (64 * 72 + 1, 72, 1))  # groups are no whole 16 bytes apart
        B = arenas[0].array((2, 64, 64), dtype, (64 * 72, 72, 1))
        with pytest.raises(ValueError, match=artifact["name"]):
            forced(artifact, A, B, **given)


def laid_out(name: str, e: int, m: int, n: int) -> torch.Tensor:
    """[e, m, n] of integers, as callers have them."""
    base = {
        "row-major": lambda: sparse_integers(e, m, n, dtype=torch.bfloat16),
        "column-major": lambda: sparse_integers(e, n, m, dtype=torch.bfloat16).mT,
        "groups inside rows": lambda: sparse_integers(m, e, n, dtype=torch.bfloat16).transpose(0, 1),
        "groups inside columns": lambda: sparse_integers(m, n, e, dtype=torch.bfloat16).permute(2, 0, 1),
        "odd columns of wider ones": lambda: sparse_integers(e, m, n + 9, dtype=torch.bfloat16)[:, :, 3 : 3 + n],
        "every second row": lambda: sparse_integers(e, 2 * m, n, dtype=torch.bfloat16)[:, ::2],
        "every second group": lambda: sparse_integers(2 * e, m, n, dtype=torch.bfloat16)[::2],
        "one matrix for all": lambda: sparse_integers(1, m, n, dtype=torch.bfloat16).expand(e, m, n),
        "one row for all": lambda: sparse_integers(e, 1, n, dtype=torch.bfloat16).expand(e, m, n),
    }
    return base[name]()


VIEWS = [
    "row-major", "column-major", "groups inside rows", "groups inside columns", "odd columns of wider ones",
    "every second row", "every second group", "one matrix for all", "one row for all",
]  # fmt: skip


@pytest.mark.parametrize("of_a", VIEWS)
@pytest.mark.parametrize("of_b", VIEWS)
def test_any_strides(of_a, of_b):
    for e, m, n, k in ((3, 40, 64, 72), (4, 37, 51, 43)):
        A, B = laid_out(of_a, e, m, k), laid_out(of_b, e, k, n)
        counts = torch.tensor([m, 0, 5, m - 1][:e], dtype=torch.int32, device="cuda")
        bias = torch.randint(-3, 4, (e, n), device="cuda").bfloat16()
        assert_exact(gg_runtime.grouped_mm(A, B, bias=bias), A, B, None, bias)
        for stated, of_c in itertools.product((None, counts), VIEWS[:7]):
            C = laid_out(of_c, e, m, n).fill_(AS_IT_WAS)
            assert gg_runtime.grouped_mm(A, B, counts=stated, bias=bias, out=C) is C
            assert_exact(C, A, B, stated, bias)
            plan = gg_runtime.Plan(A, B, counts=stated, bias=bias, out=C.fill_(AS_IT_WAS))
            plan.run()
            assert_exact(C, A, B, stated, bias)


@pytest.mark.parametrize("activation, order", CASES)
@pytest.mark.parametrize("n, k", [(128, 64), (122, 61)], ids=["aligned", "odd"])
@pytest.mark.parametrize("transposed", [False, True], ids=["KN", "NK"])
def test_every_activation_masked_and_batched(activation, order, n, k, transposed):
    """By one kernel where there is one, else by parts: the sums of those are rounded in between, here exactly."""
    e, m = 5, 70
    A, B = laid_out("row-major", e, m, k), laid_out("column-major" if transposed else "row-major", e, k, n)
    bias = torch.randint(-2, 3, (e, n), device="cuda").bfloat16()
    gated = activation in ("swiglu", "geglu", "geglu_tanh", "swiglu_oai")
    for stated in (None, [m, 0, 1, 33, -7], [m + 1, m - 1, 64, 65, 3]):
        counts = None if stated is None else torch.tensor(stated, dtype=torch.int32, device="cuda")
        out = torch.full((m, e, n // 2 if gated else n), AS_IT_WAS, device="cuda", dtype=A.dtype).transpose(0, 1)
        given = {"counts": counts, "bias": bias, "activation": activation, "gate_up": order}
        gg_runtime.grouped_mm(A, B, out=out, **given)
        assert_activated(out, A, B, counts, bias, activation, order)
        plan = gg_runtime.Plan(A, B, out=out.fill_(AS_IT_WAS), **given)
        plan.run()
        assert_activated(out, A, B, counts, bias, activation, order)


def test_sizes_of_zero():
    def empty(*shape):
        return torch.empty(shape, device="cuda", dtype=torch.bfloat16)

    for e, m, n, k in ((0, 4, 5, 6), (3, 0, 5, 6), (3, 4, 0, 6), (0, 0, 0, 0)):
        counts = torch.full((e,), 9, device="cuda", dtype=torch.int32)
        for given in ({}, {"counts": counts}):
            assert gg_runtime.grouped_mm(empty(e, m, k), empty(e, k, n), **given).shape == (e, m, n)
    bias = torch.randint(-3, 4, (3, 5), device="cuda").bfloat16()
    counts = torch.tensor([4, 0, 2], device="cuda", dtype=torch.int32)
    for given in ({}, {"counts": counts}):
        out = torch.full((3, 4, 5), AS_IT_WAS, device="cuda", dtype=torch.bfloat16)
        gg_runtime.grouped_mm(empty(3, 4, 0), empty(3, 0, 5), bias=bias, out=out, **given)
        assert_exact(out, empty(3, 4, 0), empty(3, 0, 5), given.get("counts"), bias)


@pytest.mark.parametrize("n, k, transposed", [(128, 96, False), (128, 96, True), (75, 61, False)])
def test_replays_take_the_counts_of_the_moment(n, k, transposed):
    e, m = 140, 67
    A, B = laid_out("row-major", e, m, k), laid_out("column-major" if transposed else "row-major", e, k, n)
    counts = torch.full((e,), m, dtype=torch.int32, device="cuda")
    out = torch.empty(e, m, n, device="cuda", dtype=A.dtype)
    graph, C = captured(lambda: gg_runtime.grouped_mm(A, B, counts=counts, out=out))
    assert C is out
    for seed in range(40):
        numbers = random.Random(seed)
        most = numbers.choice([0, 1, 8, m, m + 3])
        counts.copy_(torch.tensor([numbers.randint(-1, most) for _ in range(e)]))
        if seed % 4 == 3:
            counts.copy_(torch.tensor([numbers.randrange(-INT32, INT32) for _ in range(e)]))
        out.fill_(AS_IT_WAS)
        graph.replay()
        assert_exact(out, A, B, counts)


def test_one_launch():
    A, B = sparse_integers(8, 64, 64, dtype=torch.bfloat16), sparse_integers(8, 64, 64, dtype=torch.bfloat16)
    counts = torch.full((8,), 7, dtype=torch.int32, device="cuda")
    fused = [{"counts": counts, "activation": "swiglu"}] if device_sm() == 90 else []
    for given in ({}, {"counts": counts}, *fused):
        out = gg_runtime.grouped_mm(A, B, **given)
        assert node_count(lambda: gg_runtime.grouped_mm(A, B, out=out, **given)) == 1  # noqa: B023
        assert gg_runtime.explain(A, B, out=out, **given).launches == 1


def test_masked_rows_are_those_of_ragged_ones():
    """The same rows in both layouts, with exact sums."""
    e, m, n, k = 16, 96, 256, 192
    counts = torch.tensor([random.Random(g).randint(0, m) for g in range(e)], dtype=torch.int32, device="cuda")
    A, B = sparse_integers(e, m, k, dtype=torch.bfloat16), sparse_integers(e, k, n, dtype=torch.bfloat16)
    rows = torch.cat([A[g, :count] for g, count in enumerate(counts.tolist())])
    ragged = gg_runtime.grouped_mm(rows, B, offs=counts.cumsum(0).int())
    masked = gg_runtime.grouped_mm(A, B, counts=counts)
    assert torch.equal(ragged, torch.cat([masked[g, :count] for g, count in enumerate(counts.tolist())]))


@pytest.mark.gpu_gib(20)
def test_elements_past_2_31_of_each_array():
    e, m, k, n = 5, 2**17, 4096, 4096
    A, B = (torch.zeros(*shape, device="cuda", dtype=torch.bfloat16) for shape in ((e, m, k), (e, k, n)))
    A[-1, -70:] = sparse_integers(70, k, dtype=torch.bfloat16)
    B[-1] = sparse_integers(k, n, dtype=torch.bfloat16)
    C = gg_runtime.grouped_mm(A, B)
    assert torch.equal(C[-1, -70:].float(), A[-1, -70:].float() @ B[-1].float())
    assert not C[-1, :-70].any() and not C[0].any()
