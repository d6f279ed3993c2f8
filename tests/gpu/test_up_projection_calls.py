"""grouped_mm with an index and an activation in graphs, plans, streams and other frameworks; the same bits again."""

import pytest

torch = pytest.importorskip("torch")

import gg_runtime  # noqa: E402
from capture import captured  # noqa: E402
from gpu_busy import assert_no_call_waits, occupy  # noqa: E402
from oracle import fill_normal  # noqa: E402
from ragged_cases import as_offs, operands, random_sizes  # noqa: E402
from up_projection_oracle import assert_close, assert_one_rounding, sums  # noqa: E402

SIZES = [0, 33, 1, 0, 130, 7, 0]
ROWS = sum(SIZES)
FORMS = {"KN": (128, 96, False), "NK": (128, 96, True), "odd": (74, 61, False)}
NAN = float("nan")


def forms():
    return pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)


def index_of(rows, source_rows):
    return torch.randint(-source_rows // 4, source_rows, (rows,), device="cuda", dtype=torch.int32)


@forms()
@pytest.mark.parametrize("activation", [None, "swiglu_oai", "relu2"])
def test_a_graph_takes_the_index_the_ends_and_the_rows_of_the_moment(activation, form):
    n, k, transposed = form
    A, B, offs, _ = operands(SIZES, n, k, transposed=transposed)
    index = index_of(ROWS, ROWS)
    kept = torch.empty(ROWS, n, device="cuda", dtype=torch.bfloat16) if activation else None
    given = {"offs": offs, "a_index": index, "activation": activation, "preactivation": kept}
    graph, out = captured(lambda: gg_runtime.grouped_mm(A, B, **given))
    for seed in range(6):
        offs.copy_(as_offs(random_sizes(len(SIZES), ROWS - seed, seed, occupied=0.5)))
        index.copy_(index_of(ROWS, ROWS))
        A.copy_(torch.randint(-2, 3, A.shape, device="cuda"))
        out.fill_(NAN)
        other = torch.full((1 << 22,), NAN, device="cuda")  # what was freed since the capture is somebody else's
        graph.replay()
        z = sums(A, B, offs, index=index)
        if activation is None:
            assert torch.equal(out.double(), z)
        else:
            assert torch.equal(kept.double(), z)
            assert_one_rounding(out, z, activation)
        assert other.isnan().all()


@forms()
def test_a_side_stream_orders_all_launches_after_its_own_work(form):
    n, k, transposed = form
    A, B, offs, _ = operands(SIZES, n, k, transposed=transposed)
    values = index_of(ROWS, ROWS)
    index = torch.full_like(values, -1)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        occupy(100_000_000)
        index.copy_(values)
        out = gg_runtime.grouped_mm(A, B, offs=offs, a_index=index, activation="geglu")
    stream.synchronize()
    assert_one_rounding(out, sums(A, B, offs, index=values), "geglu")


@forms()
def test_streams_do_not_disturb_each_other(form):
    n, k, transposed = form
    streams = [torch.cuda.Stream() for _ in range(4)]
    work = [(*operands(SIZES, n, k, transposed=transposed)[:3], index_of(ROWS, ROWS)) for _ in streams]
    torch.cuda.synchronize()
    outs = [[] for _ in streams]
    for _ in range(20):
        for number, stream in enumerate(streams):
            A, B, offs, index = work[number]
            with torch.cuda.stream(stream):
                outs[number].append(gg_runtime.grouped_mm(A, B, offs=offs, a_index=index, activation="swiglu"))
    torch.cuda.synchronize()
    for (A, B, offs, index), made in zip(work, outs):
        z = sums(A, B, offs, index=index)
        for out in made:
            assert_one_rounding(out, z, "swiglu")


def test_no_call_waits_for_the_gpu():
    A, B, offs, _ = operands(SIZES, 128, 96)
    index = index_of(ROWS, ROWS)
    given = {"offs": offs, "a_index": index}
    calls = {
        "gather": lambda: gg_runtime.grouped_mm(A, B, **given),
        "gather and activate": lambda: gg_runtime.grouped_mm(A, B, **given, activation="swiglu"),
    }
    assert_no_call_waits(calls)


@forms()
def test_a_plan_repeats_all_of_it(form):
    n, k, transposed = form
    A, B, offs, kept = operands(SIZES, n, k, transposed=transposed)
    index = index_of(ROWS, ROWS)
    given = {"offs": offs, "a_index": index, "activation": "swiglu", "gate_up": "interleaved", "preactivation": kept}
    plan = gg_runtime.Plan(A, B, checked=True, **given)
    stream = torch.cuda.Stream()
    for turn in range(4):
        index.copy_(index_of(ROWS, ROWS))
        plan.out.fill_(NAN)
        kept.fill_(NAN)
        torch.cuda.synchronize()
        with torch.cuda.stream(stream if turn % 2 else torch.cuda.current_stream()):
            assert plan.run() is plan.out
        torch.cuda.synchronize()
        z = sums(A, B, offs, index=index)
        assert torch.equal(kept.double(), z)
        assert_one_rounding(plan.out, z, "swiglu", "interleaved")
    graph, _ = captured(plan.run)
    index.copy_(index_of(ROWS, ROWS))
    plan.out.fill_(NAN)
    graph.replay()
    assert_one_rounding(plan.out, sums(A, B, offs, index=index), "swiglu", "interleaved")


def test_a_plan_that_was_dropped_leaves_its_memory_to_its_graph():
    A, B, offs, _ = operands(SIZES, 128, 96)
    index = index_of(ROWS, ROWS)
    plan = gg_runtime.Plan(A, B, offs=offs, a_index=index, activation="swiglu")
    graph, out = captured(plan.run)
    del plan
    others = [torch.full((1 << shift,), NAN, device="cuda") for shift in range(8, 24)]
    out.fill_(NAN)
    graph.replay()
    assert_one_rounding(out, sums(A, B, offs, index=index), "swiglu")
    assert all(other.isnan().all() for other in others)


@forms()
@pytest.mark.parametrize("activation", [None, "swiglu"])
def test_the_same_bits_again(activation, form):
    n, k, transposed = form
    A, B, offs, _ = operands(SIZES, n, k, transposed=transposed, fill=fill_normal)
    given = {"offs": offs, "a_index": index_of(ROWS, ROWS), "activation": activation}
    first = gg_runtime.grouped_mm(A, B, **given)
    graph, replayed = captured(lambda: gg_runtime.grouped_mm(A, B, **given))
    replayed.fill_(NAN)
    graph.replay()
    with torch.cuda.stream(torch.cuda.Stream()):
        again = gg_runtime.grouped_mm(A, B, **given)
    torch.cuda.synchronize()
    assert torch.equal(first, replayed) and torch.equal(first, again)


@forms()
@pytest.mark.parametrize("activation", [None, "swiglu", "silu"])
def test_a_batch_invariant_row_has_the_same_bits_in_every_batch(activation, form):
    n, k, transposed = form
    A, B, _, _ = operands([5] * 8, n, k, transposed=transposed, fill=fill_normal)
    token = 17
    rows = []
    for before, behind in [(0, 0), (3, 0), (0, 500), (129, 4000)]:
        index = torch.randint(0, len(A), (before + 1 + behind,), device="cuda", dtype=torch.int32)
        index[before] = token
        ends = [0, 0, before, before + 1, *[before + 1 + behind] * 4]
        offs = torch.tensor(ends, dtype=torch.int32, device="cuda")
        given = {"offs": offs, "a_index": index, "activation": activation, "batch_invariant": True}
        rows.append(gg_runtime.grouped_mm(A, B, **given)[before])
    assert all(torch.equal(rows[0], row) for row in rows[1:])


def test_a_layer_by_its_parts():
    """route, up, down and combine against the loop over experts that users write."""
    torch.manual_seed(0)
    tokens, k, hidden, inner, experts = 300, 4, 256, 192, 16
    x = torch.randn(tokens, hidden, device="cuda").bfloat16()
    w1 = (torch.randn(experts, 2 * inner, hidden, device="cuda") / hidden**0.5).bfloat16()
    w2 = (torch.randn(experts, hidden, inner, device="cuda") / inner**0.5).bfloat16()
    ids = torch.randn(tokens, experts, device="cuda").topk(k)[1]
    weights = torch.rand(tokens, k, device="cuda")
    routing = gg_runtime.route(ids, experts)
    h = gg_runtime.grouped_mm(x, w1.mT, offs=routing.ends, a_index=routing.token, activation="swiglu")
    out = gg_runtime.combine(gg_runtime.grouped_mm(h, w2.mT, offs=routing.ends), routing.inverse, weights)
    wanted = torch.zeros(tokens, hidden, device="cuda", dtype=torch.float64)
    for expert in range(experts):
        token, slot = (ids == expert).nonzero(as_tuple=True)
        gate, up = (x[token].double() @ w1[expert].mT.double()).chunk(2, 1)
        rows = (torch.nn.functional.silu(gate) * up) @ w2[expert].mT.double()
        wanted.index_add_(0, token, rows * weights[token, slot, None].double())
    assert (out.double() - wanted).abs().max() < 0.05 * wanted.abs().max()


def test_cupy_arrays_take_the_same_path():
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    A, B, offs, _ = operands(SIZES, 128, 96, torch.float16)
    index = index_of(ROWS, ROWS)
    arrays = [cupy.asarray(array) for array in (A, B)]
    given = {"offs": cupy.asarray(offs), "a_index": cupy.asarray(index), "activation": "geglu"}
    out = torch.as_tensor(gg_runtime.grouped_mm(*arrays, **given), device="cuda")
    z = sums(A, B, offs, index=index)
    assert_one_rounding(out, z, "geglu")
    assert_close(out, z, "geglu")
