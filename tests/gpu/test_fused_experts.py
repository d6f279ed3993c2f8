"""fused_experts against a layer in float64: any routing, sizes and weights; bits; graphs; memory."""

import math

import pytest

torch = pytest.importorskip("torch")

import fresh_process  # noqa: E402
import gg_runtime  # noqa: E402
from capture import captured  # noqa: E402
from experts_oracle import ACTIVATIONS, GATE_ORDERS, GATED, assert_layer  # noqa: E402
from gpu_busy import assert_no_call_waits, occupy  # noqa: E402

NAN = float("nan")
DTYPES = [torch.float16, torch.bfloat16]


def layer(
    tokens=64, k=4, experts=8, hidden=256, inner=128, *, activation="swiglu", dtype=torch.bfloat16, transposed=True,
    ids=None,
):  # fmt: skip
    """x, w1, w2, weights and ids. transposed: weights [E, columns, rows], as models keep them, seen the other way."""
    columns = 2 * inner if activation in GATED else inner

    def stack(rows, columns):
        shape = (experts, columns, rows) if transposed else (experts, rows, columns)
        made = (torch.randn(shape, device="cuda") / math.sqrt(max(rows, 1))).to(dtype)
        return made.mT if transposed else made

    x = torch.randn(tokens, hidden, device="cuda").to(dtype)
    ids = torch.randint(0, experts, (tokens, k), device="cuda") if ids is None else ids
    return x, stack(hidden, columns), stack(inner, hidden), torch.rand(ids.shape, device="cuda"), ids


def workspace_for(x, w1, w2, weights, ids, *, activation="swiglu", max_rows=None, poison=0xFF):
    """Memory whose 16-bit numbers are NaN, and whose integers are -1, before the call."""
    needed = gg_runtime.fused_experts_workspace(
        len(x), ids.shape[1], len(w1), x.shape[1], w2.shape[1], activation=activation, max_rows=max_rows
    )
    return torch.full((needed,), poison, device="cuda", dtype=torch.uint8)


def run(*arguments, **options):
    """Into poisoned memory, with a poisoned workspace of exactly the bytes that are needed, and a canary behind it."""
    x, *_ = arguments
    out = torch.full_like(x, NAN)
    sizes = {name: options[name] for name in ("activation", "max_rows") if name in options}
    block = torch.cat([workspace_for(*arguments, **sizes), torch.full((4096,), 0xA5, device="cuda", dtype=torch.uint8)])
    needed = len(block) - 4096
    assert gg_runtime.fused_experts(*arguments, out=out, workspace=block[:needed], **options) is out
    assert block[needed:].eq(0xA5).all(), "memory behind the workspace was written"
    return out


def check(*arguments, **options):
    computing = {name: value for name, value in options.items() if name not in ("max_rows", "batch_invariant")}
    out = run(*arguments, **options)
    assert_layer(out, *arguments, rounded_sums=True, **computing)
    assert torch.equal(gg_runtime.fused_experts(*arguments, **options), out), "without a workspace the bits are others"
    return out


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("activation", "order"),
    [(one, order) for one in ACTIVATIONS for order in (GATE_ORDERS if one in GATED else ["gate_first"])],
)
def test_every_activation_in_every_order(activation, order, dtype):
    check(*layer(activation=activation, dtype=dtype), activation=activation, gate_up=order)


@pytest.mark.parametrize("sizes", [(64, 4, 8, 256, 128), (2048, 4, 16, 256, 128), (77, 3, 5, 75, 61)], ids=str)
@pytest.mark.parametrize("activation", ["swiglu", "swiglu_oai"])
@pytest.mark.parametrize("order", GATE_ORDERS)
def test_gate_and_up_are_limited(order, activation, sizes):
    arguments = layer(*sizes)
    options = {"activation": activation, "gate_up": order}
    bits = [check(*arguments, swiglu_limit=limit, **options) for limit in (0.5, 3, float("inf"))]
    assert not torch.equal(bits[0], bits[1])
    if activation == "swiglu":
        assert torch.equal(bits[2], check(*arguments, **options))


# Decoding, a prefill, odd sizes that no TMA reads, many experts, one expert, k of 1 and 16, no inner columns.
SHAPES = [
    (0, 4, 8, 256, 128), (1, 8, 128, 512, 64), (1, 1, 1, 64, 64), (8, 8, 128, 2048, 768), (300, 8, 60, 512, 96),
    (2048, 4, 16, 256, 128), (77, 3, 5, 75, 61), (40, 16, 512, 128, 64), (500, 1, 4, 8, 8), (33, 2, 1023, 64, 32),
    (9, 0, 4, 64, 64), (9, 2, 4, 0, 64), (9, 2, 4, 64, 0), (4000, 8, 3, 64, 1), (5, 2, 2, 1, 3),
]  # fmt: skip


@pytest.mark.parametrize("transposed", [True, False], ids=["nk", "kn"])
@pytest.mark.parametrize("sizes", SHAPES, ids=str)
def test_any_sizes(sizes, transposed):
    check(*layer(*sizes, transposed=transposed))


@pytest.mark.parametrize("sizes", [(64, 4, 8, 256, 128), (77, 3, 5, 75, 61)], ids=str)
@pytest.mark.parametrize("activation", ["swiglu_oai", "relu2", None])
@pytest.mark.parametrize("weights", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("on_input", [False, True])
def test_biases_weights_and_what_is_added(on_input, weights, activation, sizes):
    x, w1, w2, factors, ids = layer(*sizes, activation=activation)
    b1, b2 = (torch.randn(len(w1), w.shape[2], device="cuda").bfloat16() for w in (w1, w2))
    options = {"add": torch.randn_like(x), "scale": 2.5, "apply_router_weight_on_input": on_input}
    check(x, w1, w2, factors.to(weights), ids, activation=activation, b1=b1, b2=b2, **options)


def test_a_shared_experts_rows_are_added_in_place():
    arguments = layer()
    add = torch.randn_like(arguments[0])
    want = gg_runtime.fused_experts(*arguments, add=add, scale=0.5)
    assert gg_runtime.fused_experts(*arguments, add=add, scale=0.5, out=add) is add
    assert torch.equal(add, want)


@pytest.mark.parametrize("integer", [torch.int32, torch.int64], ids=str)
def test_ids_that_are_no_experts_drop_out(integer):
    x, w1, w2, weights, _ = layer(tokens=500)
    limits = torch.iinfo(integer)
    ids = torch.randint(-3, 14, (500, 4), device="cuda", dtype=integer)
    ids[::7] = torch.randint(limits.min, limits.max, ids[::7].shape, device="cuda", dtype=integer)
    ids[3] = -1
    out = check(x, w1, w2, weights, ids)
    assert not out[3].any()
    expert_map = torch.randint(-1, 9, (12,), device="cuda", dtype=torch.int32)
    check(x, w1, w2, weights, ids, expert_map=expert_map)
    check(x, w1, w2, weights, ids, expert_map=expert_map[:0])


@pytest.mark.parametrize("tokens", [7, 3000])
def test_all_tokens_may_choose_one_expert(tokens):
    ids = torch.full((tokens, 2), 5, device="cuda")
    check(*layer(tokens, experts=9, ids=ids))


def test_nan_that_nobody_asked_for_stays_out():
    x, w1, w2, weights, ids = layer(tokens=300, experts=16)
    ids[ids == 3] = 4
    ids[::5], ids[1] = -1, 16
    want = check(x, w1, w2, weights, ids)
    w1[3], w2[3] = NAN, NAN
    weights[ids == 16], weights[ids < 0] = NAN, NAN
    x[::5], x[1] = NAN, NAN
    assert torch.equal(run(x, w1, w2, weights, ids), want)


def test_rows_of_one_token_do_not_reach_another():
    x, w1, w2, weights, ids = layer(tokens=128)
    clean = run(x, w1, w2, weights, ids)
    x[7] = NAN
    dirty = run(x, w1, w2, weights, ids)
    others = torch.arange(128, device="cuda") != 7
    assert torch.equal(dirty[others], clean[others]) and dirty[7].isnan().all()


@pytest.mark.parametrize("offset", [0, 1, 8])
@pytest.mark.parametrize("pad", [0, 3, 8])
def test_arrays_lie_anywhere(pad, offset):
    x, w1, w2, weights, ids = layer(tokens=100)
    wide = torch.full((100, 256 + offset + pad), NAN, device="cuda", dtype=torch.bfloat16)
    target = torch.full((100, 256 + offset + pad), 5.0, device="cuda", dtype=torch.bfloat16)
    view, out = (array[:, offset : offset + 256] for array in (wide, target))
    view.copy_(x)
    up = torch.full((8, 256 + pad, 256 + offset), NAN, device="cuda", dtype=torch.bfloat16)
    up[:, :256, offset:] = w1
    gg_runtime.fused_experts(view, up[:, :256, offset:], w2, weights, ids, out=out)
    assert_layer(out, x, w1, w2, weights, ids, rounded_sums=True)
    assert target[:, :offset].eq(5).all() and target[:, offset + 256 :].eq(5).all()


def test_bits_are_the_same_again_on_other_streams_and_in_a_plan():
    arguments = layer(tokens=700, experts=32, k=8)
    first = run(*arguments)
    for _ in range(5):
        assert torch.equal(run(*arguments), first)
    plan = gg_runtime.ExpertsPlan(*arguments)
    plan.out.fill_(NAN)
    assert plan.run() is plan.out and torch.equal(plan.out, first)
    for _ in range(3):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            assert torch.equal(run(*arguments), first)
            plan.out.fill_(NAN)
            plan.run()
        torch.cuda.current_stream().wait_stream(stream)
        assert torch.equal(plan.out, first)


@pytest.mark.parametrize("sizes", [(700, 8, 32, 256, 128), (300, 3, 5, 75, 61)], ids=str)
@pytest.mark.parametrize("on_input", [False, True])
def test_batch_invariant_bits_depend_on_neither_chunks_nor_other_tokens(sizes, on_input):
    x, w1, w2, weights, ids = layer(*sizes)
    k = sizes[1]
    options = {"batch_invariant": True, "apply_router_weight_on_input": on_input}
    whole = check(x, w1, w2, weights, ids, **options)
    for max_rows in (k, 7 * k, 64 * k + 1, 299 * k, len(x) * k):
        assert torch.equal(run(x, w1, w2, weights, ids, max_rows=max_rows, **options), whole), max_rows
    for first, last in ((0, 1), (5, 6), (17, 100), (0, 299)):
        part = slice(first, last)
        assert torch.equal(run(x[part], w1, w2, weights[part], ids[part], **options), whole[part])
    order = torch.randperm(len(x), device="cuda")
    assert torch.equal(run(x[order], w1, w2, weights[order], ids[order], **options), whole[order])


@pytest.mark.parametrize("max_rows", [4, 30, 1000])
def test_chunks_are_right_without_batch_invariance_too(max_rows):
    x, w1, w2, weights, ids = layer(tokens=50)
    check(x, w1, w2, weights, ids, max_rows=max_rows, add=torch.randn_like(x), scale=0.5)


@pytest.mark.parametrize("call", ["fused_experts", "workspace", "chunks", "plan"])
@pytest.mark.parametrize("tokens", [8, 700])
def test_a_replay_takes_the_routing_of_the_moment(tokens, call):
    x, *_, weights, ids = arguments = layer(tokens=tokens, experts=32, k=8)
    options = {
        "workspace": {"workspace": workspace_for(*arguments), "out": torch.empty_like(x)},
        "chunks": {"max_rows": 100},
    }.get(call, {})
    plan = gg_runtime.ExpertsPlan(*arguments) if call == "plan" else None
    graph, out = captured(plan.run if plan else lambda: gg_runtime.fused_experts(*arguments, **options))
    for seed in range(4):
        ids.copy_(torch.randint(-1, 33, ids.shape, device="cuda") if seed else torch.zeros_like(ids))
        x.copy_(torch.randn_like(x))
        weights.copy_(torch.rand_like(weights))
        out.fill_(NAN)
        garbage = torch.full((1 << 20,), NAN, device="cuda")  # what the allocator has freed is written over
        graph.replay()
        assert torch.equal(out, gg_runtime.fused_experts(*arguments, **{**options, "out": torch.empty_like(x)}))
        assert_layer(out, *arguments, rounded_sums=True)
        del garbage


FIRST_USE = """
import torch, gg_runtime
if {preload}:
    assert gg_runtime.preload(0) > 0
x = torch.randn({tokens}, {hidden}, device="cuda").bfloat16()
w1 = torch.randn(4, 2 * {inner}, {hidden}, device="cuda").bfloat16().mT
w2 = torch.randn(4, {hidden}, {inner}, device="cuda").bfloat16().mT
ids = torch.randint(-1, 4, ({tokens}, 2), device="cuda")
weights = torch.rand({tokens}, 2, device="cuda")
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    out = gg_runtime.fused_experts(x, w1, w2, weights, ids, apply_router_weight_on_input={on_input})
out.fill_(float("nan"))
graph.replay()
torch.cuda.synchronize()
assert torch.equal(out, gg_runtime.fused_experts(x, w1, w2, weights, ids, apply_router_weight_on_input={on_input}))
assert __import__("sys").modules["triton"] is None
"""


@pytest.mark.parametrize("preload", [False, True], ids=["cold", "preloaded"])
@pytest.mark.parametrize(("hidden", "inner"), [(256, 128), (75, 61)])
@pytest.mark.parametrize(("tokens", "on_input"), [(20, True), (3000, False)])
def test_first_use_in_a_process_may_be_captured(tokens, on_input, hidden, inner, preload):
    fresh_process.run(FIRST_USE.format(tokens=tokens, hidden=hidden, inner=inner, on_input=on_input, preload=preload))


def test_one_workspace_serves_calls_in_a_row():
    calls = [layer(tokens=tokens, experts=16, k=4) for tokens in (300, 5, 0, 128, 299)]
    workspace = workspace_for(*calls[0])
    outs = [gg_runtime.fused_experts(*arguments, workspace=workspace) for arguments in calls]
    for arguments, out in zip(calls, outs):
        assert torch.equal(out, gg_runtime.fused_experts(*arguments))


def test_two_streams_have_two_workspaces():
    calls = [layer(tokens=2000, experts=16, k=4) for _ in range(2)]
    want = [gg_runtime.fused_experts(*arguments) for arguments in calls]
    streams = [torch.cuda.Stream() for _ in calls]
    workspaces = [workspace_for(*arguments) for arguments in calls]
    torch.cuda.synchronize()
    for _ in range(10):
        outs = []
        for arguments, stream, workspace in zip(calls, streams, workspaces):
            with torch.cuda.stream(stream):
                outs.append(gg_runtime.fused_experts(*arguments, workspace=workspace))
        torch.cuda.synchronize()
        assert all(torch.equal(out, right) for out, right in zip(outs, want))


def test_a_side_stream_orders_the_launches_after_its_own_work():
    x, w1, w2, weights, ids = layer()
    chosen = ids.clone()
    ids.fill_(-1)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        occupy(100_000_000)
        ids.copy_(chosen)
        out = gg_runtime.fused_experts(x, w1, w2, weights, ids)
    stream.synchronize()
    assert_layer(out, x, w1, w2, weights, chosen, rounded_sums=True)


def test_no_call_waits():
    arguments = layer(tokens=700, experts=32, k=8)
    memory = {"workspace": workspace_for(*arguments), "out": torch.empty_like(arguments[0])}
    plan = gg_runtime.ExpertsPlan(*arguments)
    assert_no_call_waits(
        {
            "fused_experts": lambda: gg_runtime.fused_experts(*arguments),
            "with a workspace": lambda: gg_runtime.fused_experts(*arguments, **memory),
            "in chunks": lambda: gg_runtime.fused_experts(*arguments, max_rows=512),
            "a plan": plan.run,
        }
    )


def test_with_workspace_and_out_nothing_is_allocated():
    arguments = layer(tokens=700, experts=32, k=8)
    memory = {"workspace": workspace_for(*arguments), "out": torch.empty_like(arguments[0])}
    gg_runtime.fused_experts(*arguments, **memory)
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    for max_rows in (None, 800):
        gg_runtime.fused_experts(*arguments, **memory, max_rows=max_rows)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


def test_layers_past_two_gigabytes():
    """Rows of the workspace whose addresses need more than 31 bits."""
    tokens, hidden, inner = 160_000, 2048, 64
    x = torch.zeros(tokens, hidden, device="cuda", dtype=torch.bfloat16)
    picked = torch.tensor([0, 65_537, 131_073, tokens - 1], device="cuda")
    x[picked] = torch.randn(4, hidden, device="cuda").bfloat16()
    _, w1, w2, weights, ids = layer(tokens, 8, 4, 8, 8)
    w1 = (torch.randn(4, 2 * inner, hidden, device="cuda") / 45).bfloat16().mT
    w2 = (torch.randn(4, hidden, inner, device="cuda") / 8).bfloat16().mT
    out = gg_runtime.fused_experts(x, w1, w2, weights, ids)
    assert_layer(out[picked], x[picked], w1, w2, weights[picked], ids[picked], rounded_sums=True)
    assert out.count_nonzero() == out[picked].count_nonzero()


def test_explain_names_the_kernels_that_a_plan_launches():
    for tokens in (0, 1, 8, 700, 5000):
        arguments = layer(tokens=tokens, experts=32, k=8)
        plan, told = gg_runtime.ExpertsPlan(*arguments), gg_runtime.explain_experts(*arguments)
        assert [variant for step in told.steps for variant in step["variants"]] == plan.variants
        assert told.launches == plan.launches
