"""fused_experts with e4m3 weights on a GPU, against a layer in float64: any routing, sizes, weights; bits; graphs."""

import math

import pytest

torch = pytest.importorskip("torch")

import gg_runtime  # noqa: E402
from capture import captured  # noqa: E402
from cases import device_sm  # noqa: E402
from experts_oracle import ACTIVATIONS, GATE_ORDERS, GATED  # noqa: E402
from fp8_experts_oracle import assert_layer, quantized_weights  # noqa: E402
from gpu_busy import assert_no_call_waits  # noqa: E402

NAN = float("nan")
pytestmark = pytest.mark.skipif(device_sm() != 90, reason=f"e4m3 kernels are for sm_90, this GPU is sm_{device_sm()}")


def layer(tokens=64, k=4, experts=8, hidden=256, inner=128, *, activation="swiglu", dtype=torch.bfloat16, ids=None):
    """Arguments of fused_experts by name."""
    columns = 2 * inner if activation in GATED else inner

    def weights(n, k):
        return quantized_weights(torch.randn(experts, n, k, device="cuda") / math.sqrt(max(k, 1)))

    (w1, s1), (w2, s2) = weights(columns, hidden), weights(hidden, inner)
    x = torch.randn(tokens, hidden, device="cuda").to(dtype)
    ids = torch.randint(0, experts, (tokens, k), device="cuda") if ids is None else ids
    return {
        "x": x, "w1": w1.mT, "w2": w2.mT, "topk_weights": torch.rand(ids.shape, device="cuda"), "topk_ids": ids,
        "w1_scale": s1, "w2_scale": s2,
    }  # fmt: skip


def workspace_for(given, *, activation="swiglu", max_rows=None):
    """Memory whose 16-bit and 8-bit numbers are NaN, and whose integers are -1, before the call."""
    needed = gg_runtime.fused_experts_workspace(
        len(given["x"]), given["topk_ids"].shape[1], len(given["w1"]), given["x"].shape[1], given["w2"].shape[1],
        activation=activation, max_rows=max_rows, use_fp8_w8a8=True,
    )  # fmt: skip
    return torch.full((needed,), 0xFF, device="cuda", dtype=torch.uint8)


def run(given, **options):
    """Into poisoned memory, with a poisoned workspace of exactly the bytes that are needed, and a canary behind it."""
    out = torch.full_like(given["x"], NAN)
    sizes = {name: options[name] for name in ("activation", "max_rows") if name in options}
    block = torch.cat([workspace_for(given, **sizes), torch.full((4096,), 0xA5, device="cuda", dtype=torch.uint8)])
    needed = len(block) - 4096
    assert gg_runtime.fused_experts(**given, out=out, workspace=block[:needed], **options) is out
    assert block[needed:].eq(0xA5).all(), "memory behind the workspace was written"
    return out


def assert_right(out, given, **options):
    named = {"weights": given["topk_weights"], "ids": given["topk_ids"]}
    rest = {name: value for name, value in given.items() if not name.startswith("topk")}
    computing = {name: value for name, value in options.items() if name not in ("max_rows", "batch_invariant")}
    assert_layer(out, **named, **rest, **computing)


def check(given, **options):
    out = run(given, **options)
    assert_right(out, given, **options)
    assert torch.equal(gg_runtime.fused_experts(**given, **options), out), "without a workspace the bits are others"
    return out


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("activation", "order"),
    [(one, order) for one in ACTIVATIONS for order in (GATE_ORDERS if one in GATED else ["gate_first"])],
)
def test_every_activation_in_every_order(activation, order, dtype):
    check(layer(activation=activation, dtype=dtype), activation=activation, gate_up=order)


# Decoding, a prefill, sizes of which 128 and 16 are no divisors, many experts, one expert, k of 1 and 16, no columns.
SHAPES = [
    (0, 4, 8, 256, 128), (1, 8, 128, 512, 128), (1, 1, 1, 64, 64), (8, 8, 128, 2048, 768), (300, 8, 60, 512, 96),
    (2048, 4, 16, 256, 128), (77, 3, 5, 75, 61), (40, 16, 512, 128, 128), (500, 1, 4, 8, 8), (33, 2, 1023, 64, 32),
    (9, 0, 4, 64, 64), (9, 2, 4, 0, 64), (9, 2, 4, 64, 0), (1000, 8, 3, 144, 16), (5, 2, 2, 1, 3),
    (600, 8, 16, 1040, 384), (64, 8, 8, 7168, 2048),
]  # fmt: skip


@pytest.mark.parametrize("sizes", SHAPES, ids=str)
def test_any_sizes(sizes):
    check(layer(*sizes))


@pytest.mark.parametrize("sizes", [(64, 4, 8, 256, 128), (77, 3, 5, 75, 61)], ids=str)
@pytest.mark.parametrize("activation", ["swiglu_oai", "relu2", None])
@pytest.mark.parametrize("weights", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("on_input", [False, True])
def test_biases_weights_and_what_is_added(on_input, weights, activation, sizes):
    given = layer(*sizes, activation=activation)
    given["topk_weights"] = given["topk_weights"].to(weights)
    b1, b2 = (torch.randn(len(w), w.shape[2], device="cuda").bfloat16() for w in (given["w1"], given["w2"]))
    options = {"add": torch.randn_like(given["x"]), "scale": 2.5, "apply_router_weight_on_input": on_input}
    check(given, activation=activation, b1=b1, b2=b2, **options)
    check(given, activation=activation, **options)


@pytest.mark.parametrize("integer", [torch.int32, torch.int64], ids=str)
def test_ids_that_are_no_experts_drop_out(integer):
    limits = torch.iinfo(integer)
    ids = torch.randint(-3, 14, (500, 4), device="cuda", dtype=integer)
    ids[::7] = torch.randint(limits.min, limits.max, ids[::7].shape, device="cuda", dtype=integer)
    ids[3] = -1
    given = layer(tokens=500, ids=ids)
    assert not check(given)[3].any()
    expert_map = torch.randint(-1, 9, (12,), device="cuda", dtype=torch.int32)
    check(given, expert_map=expert_map)
    check(given, expert_map=expert_map[:0])


@pytest.mark.parametrize("tokens", [7, 3000])
def test_all_tokens_may_choose_one_expert(tokens):
    check(layer(tokens, experts=9, ids=torch.full((tokens, 2), 5, device="cuda")))


def activated_apart(given):
    """With a bias of zeros, so that the up projection does not activate: its sums are rounded before that."""
    w1 = given["w1"]
    return given | {"b1": torch.zeros(len(w1), w1.shape[2], device="cuda", dtype=given["x"].dtype)}


# Whole tiles, tails of K and of columns, groups of few rows, and ids that are no experts.
PICKED = [
    (4096, 8, 128, 2048, 768), (1024, 4, 4, 272, 128), (2000, 8, 4, 1040, 200), (600, 8, 3, 2064, 200),
    (1024, 8, 100, 512, 384),
]  # fmt: skip


@pytest.mark.parametrize("sizes", PICKED, ids=str)
def test_tokens_that_are_quantized_once_give_the_bits_of_rows_in_order(sizes):
    tokens, k, experts = sizes[:3]
    ids = torch.randint(-1, experts + 1, (tokens, k), device="cuda")
    ids[::5] = -1
    given = activated_apart(layer(*sizes, ids=ids))
    given["topk_weights"].fill_(1)
    given["x"][::5] = NAN  # of tokens that no expert gets
    plan = gg_runtime.ExpertsPlan(**given)
    assert any(name.startswith("hopper_gather_block_scales") for name in plan.variants)
    picked = check(given)
    # Weights on the input are factors of scales, which only rows in order have: here factors of 1.
    assert torch.equal(run(given, apply_router_weight_on_input=True), picked)
    given["x"].copy_(torch.randn_like(given["x"]))
    assert torch.equal(plan.run(), run(given, apply_router_weight_on_input=True))


@pytest.mark.parametrize("in_graph", [False, True], ids=["eager", "graph"])
def test_a_quantization_beside_the_routing_sees_what_was_launched_before_it(in_graph):
    """Layers one behind the other through one workspace: each quantizes what a launch just ahead of it has written, and
    sorts ids that such a launch has written."""
    given = activated_apart(layer(*PICKED[1]))
    given["topk_weights"].fill_(1)
    x, ids = given["x"], given["topk_ids"]
    first, first_ids = x.clone(), ids.clone()
    workspace = workspace_for(given)

    def layers(**options):
        x.copy_(first)
        ids.copy_(first_ids)
        for turn in range(6):
            y = gg_runtime.fused_experts(**given, workspace=workspace, **options)
            x.copy_(y / y.float().abs().amax(1, keepdim=True).clamp(min=1e-6) + turn)
            ids.copy_((ids + turn) % 4)
        return y

    assert any(one.startswith("hopper_gather_block_scales") for one in gg_runtime.ExpertsPlan(**given).variants)
    graph, y = captured(layers) if in_graph else (None, None)
    for _ in range(20):
        first.copy_(torch.randn_like(first))
        first_ids.copy_(torch.randint(0, 4, ids.shape, device="cuda"))
        if graph is not None:
            graph.replay()
        else:
            y = layers()
        assert torch.equal(y, layers(apply_router_weight_on_input=True))  # which quantizes rows that routing tells


QUANTIZING = "hopper_gather_quantized"  # the up projection that activates and quantizes


def fused_layer(*sizes, activation="swiglu", gate_up="gate_first", batch_invariant=False, **others):
    """Arguments of a layer whose up projection activates and quantizes, which the test is about."""
    given = layer(*sizes, activation=activation, **others)
    assert is_fused(given, activation=activation, gate_up=gate_up, batch_invariant=batch_invariant)
    return given


def is_fused(given, **options):
    return any(name.startswith(QUANTIZING) for name in gg_runtime.ExpertsPlan(**given, **options).variants)


def routed(counts):
    """One expert for each token, in any order: ids [tokens, 1] that give each expert so many rows."""
    ids = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    return ids[torch.randperm(len(ids))][:, None].cuda()


# Whole tiles, tails of K, one block of columns and several, groups of few rows.
FUSED = [
    (4096, 8, 128, 2048, 768), (1024, 4, 4, 272, 128), (2000, 8, 4, 1040, 256), (1001, 4, 4, 400, 384),
    (1024, 8, 100, 512, 384), (3000, 3, 7, 128, 128), (900, 2, 3, 16, 640),
]  # fmt: skip


@pytest.mark.parametrize("sizes", FUSED, ids=str)
def test_an_up_projection_that_quantizes(sizes):
    """With ids that are no experts, and NaN in tokens that no expert gets."""
    tokens, k, experts = sizes[:3]
    ids = torch.randint(-1, experts + 1, (tokens, k), device="cuda")
    ids[::5] = -1
    given = fused_layer(*sizes, ids=ids)
    given["x"][::5] = NAN
    out = check(given)
    assert not out[::5].any()
    apart = run(activated_apart(given))  # which quantizes other roundings of the same sums
    assert float((out.double() - apart.double()).norm() / apart.double().norm()) < 0.02


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("order", ["gate_first", "up_first"])
@pytest.mark.parametrize("activation", ["swiglu", "geglu_tanh", "swiglu_oai"])
def test_an_up_projection_that_quantizes_takes_each_activation(activation, order, dtype):
    options = {"activation": activation, "gate_up": order}
    given = fused_layer(1024, 4, 4, 272, 384, dtype=dtype, **options)
    given["x"].mul_(4)  # so that some of gate and of up is past what swiglu_oai clamps to
    check(given, add=torch.randn_like(given["x"]), scale=0.5, **options)


@pytest.mark.parametrize("activation", ["swiglu", "swiglu_oai"])
def test_gate_and_up_are_limited(activation):
    """Where the up projection quantizes, and where a kernel of its own does."""
    fused = fused_layer(1024, 4, 4, 272, 384, activation=activation)
    for given in (fused, activated_apart(fused), layer()):
        bits = [check(given, activation=activation, swiglu_limit=limit) for limit in (0.5, 2.0)]
        assert not torch.equal(*bits)


def test_gate_and_up_have_scales_of_their_own():
    """Scales of blocks of w1 differ a thousandfold: one that is another block's would show."""
    given = fused_layer(1024, 4, 4, 272, 384)
    for order in ("gate_first", "up_first"):
        given["w1_scale"].copy_(10 ** torch.empty_like(given["w1_scale"]).uniform_(-3, 0) / 100)
        assert is_fused(given, gate_up=order)
        check(given, gate_up=order)


@pytest.mark.parametrize(
    "counts",
    [(0, 1, 127, 128, 129, 255, 257, 1151), (2048, 0, 0, 0), (0, 0, 0, 2047), (64, 65, 63, 1, 0, 1300, 0, 555)],
    ids=str,
)
def test_groups_of_any_size_are_quantized(counts):
    given = fused_layer(sum(counts), 1, len(counts), 512, 256, ids=routed(counts))
    for name in ("w1", "w2"):  # of experts that no token chose
        for expert in (e for e, count in enumerate(counts) if not count):
            given[name].view(torch.uint8)[expert] = 0x7F
            given[f"{name}_scale"][expert] = NAN
    assert not run(given).isnan().any()
    alive = torch.tensor([count > 0 for count in counts], device="cuda")
    place = (alive.cumsum(0) - 1).masked_fill(~alive, -1).int()
    some = {name: given[name][alive] for name in ("w1", "w2", "w1_scale", "w2_scale")}
    assert_right(run(given), given | some | {"topk_ids": place[given["topk_ids"]]})


def test_blocks_of_zeros_have_the_scale_1():
    """A block of zeros has no largest value to divide by: of a token of zeros, and of columns whose gate is none."""
    given = fused_layer(1024, 4, 4, 272, 384)
    given["x"][::3] = 0
    given["w1"].view(torch.uint8)[:, :, 128:256] = 0
    out = check(given)
    assert not out[::3].any()
    given["w1"].view(torch.uint8)[1] = 0
    check(given)
    given["w1"].view(torch.uint8)[:] = 0
    assert not run(given).any()


def test_blocks_of_tiny_values_become_zeros_as_quantize_has_them():
    given = fused_layer(1024, 4, 4, 272, 384)
    given["x"].mul_(2.0**-60)  # gate times up is some 2^-120, below the least block that has a scale
    assert not run(given).any()


def test_nan_of_one_token_stays_in_its_rows():
    given = fused_layer(1024, 4, 4, 272, 384)
    clean = run(given)
    given["x"][7] = NAN
    given["x"][100, 5] = NAN
    dirty = run(given)
    others = torch.ones(1024, dtype=torch.bool, device="cuda")
    others[7] = others[100] = False
    assert torch.equal(dirty[others], clean[others]) and dirty[~others].isnan().all()


def test_a_plan_that_quantizes_takes_what_its_memory_holds_by_then():
    given = fused_layer(1024, 4, 4, 272, 384)
    x, ids = given["x"], given["topk_ids"]
    plan = gg_runtime.ExpertsPlan(**given)
    graph, out = captured(plan.run)
    for seed in range(4):
        ids.copy_(torch.randint(-1, 5, ids.shape, device="cuda") if seed else torch.full_like(ids, 2))
        x.copy_(torch.randn_like(x))
        want = run(given)
        assert_right(want, given)
        assert torch.equal(plan.run(), want)
        out.fill_(NAN)
        graph.replay()
        assert torch.equal(out, want)


@pytest.mark.parametrize("sizes", [(700, 8, 32, 256, 128), (1001, 4, 4, 400, 384)], ids=str)
def test_batch_invariant_bits_of_an_up_projection_that_quantizes(sizes):
    tokens, k = sizes[:2]
    given = fused_layer(*sizes, batch_invariant=True)
    whole = check(given, batch_invariant=True)
    for max_rows in (k, 7 * k, 64 * k + 1, tokens * k):
        assert torch.equal(run(given, max_rows=max_rows, batch_invariant=True), whole), max_rows

    def some(rows):
        return given | {name: given[name][rows] for name in ("x", "topk_weights", "topk_ids")}

    for first, last in ((0, 1), (5, 6), (17, 100), (0, tokens - 1)):
        part = some(slice(first, last))
        assert is_fused(part, batch_invariant=True)
        assert torch.equal(run(part, batch_invariant=True), whole[first:last])
    order = torch.randperm(tokens, device="cuda")
    assert torch.equal(run(some(order), batch_invariant=True), whole[order])


@pytest.mark.parametrize("in_graph", [False, True], ids=["eager", "graph"])
def test_layers_that_quantize_through_one_workspace_do_not_meet(in_graph):
    """Each quantizes x beside its routing: the bits are those of layers of which each waits for the one ahead."""
    given = fused_layer(1024, 4, 4, 272, 384)
    x, ids = given["x"], given["topk_ids"]
    first, first_ids = x.clone(), ids.clone()
    workspace = workspace_for(given)

    def layers(waits=False):
        x.copy_(first)
        ids.copy_(first_ids)
        for turn in range(6):
            y = gg_runtime.fused_experts(**given, workspace=workspace)
            if waits:
                torch.cuda.synchronize()
            x.copy_(y / y.float().abs().amax(1, keepdim=True).clamp(min=1e-6) + turn)
            ids.copy_((ids + turn) % 4)
            if waits:
                torch.cuda.synchronize()
        return y

    graph, y = captured(layers) if in_graph else (None, None)
    for _ in range(20):
        first.copy_(torch.randn_like(first))
        first_ids.copy_(torch.randint(0, 4, ids.shape, device="cuda"))
        if graph is not None:
            graph.replay()
        else:
            y = layers()
        assert torch.equal(y, layers(waits=True))


def test_nan_that_nobody_asked_for_stays_out():
    given = layer(tokens=300, experts=16, hidden=272, inner=256)
    x, ids = given["x"], given["topk_ids"]
    ids[ids == 3] = 4
    ids[::5], ids[1] = -1, 16
    want = check(given)
    for name in ("w1", "w2"):
        given[name].view(torch.uint8)[3] = 0x7F
        given[f"{name}_scale"][3] = NAN
    given["topk_weights"][ids == 16], given["topk_weights"][ids < 0] = NAN, NAN
    x[::5], x[1] = NAN, NAN
    assert torch.equal(run(given), want)


def test_rows_of_one_token_do_not_reach_another():
    given = layer(tokens=128)
    clean = run(given)
    given["x"][7] = NAN
    dirty = run(given)
    others = torch.arange(128, device="cuda") != 7
    assert torch.equal(dirty[others], clean[others]) and dirty[7].isnan().all()


def test_arrays_lie_anywhere():
    given = layer(tokens=100)
    want = run(given)
    wide = torch.full((100, 256 + 9), NAN, device="cuda", dtype=torch.bfloat16)
    wide[:, 1:257] = given["x"]
    moved = given | {"x": wide[:, 1:257], "w1_scale": given["w1_scale"].mT.contiguous().mT}
    moved["w2"] = given["w2"].view(torch.uint8).contiguous().view(torch.float8_e4m3fn)  # N contiguous: another kernel
    out = torch.full((100, 300), 5.0, device="cuda", dtype=torch.bfloat16)
    gg_runtime.fused_experts(**moved, out=out[:, 3:259])
    assert_right(out[:, 3:259], given)
    assert out[:, :3].eq(5).all() and out[:, 259:].eq(5).all()
    assert torch.equal(run(given), want)


@pytest.mark.parametrize("sizes", [(700, 8, 32, 256, 128), (300, 3, 5, 75, 61)], ids=str)
@pytest.mark.parametrize("on_input", [False, True])
def test_batch_invariant_bits_depend_on_neither_chunks_nor_other_tokens(sizes, on_input):
    given = layer(*sizes)
    k, tokens = sizes[1], sizes[0]
    options = {"batch_invariant": True, "apply_router_weight_on_input": on_input}
    whole = check(given, **options)
    for max_rows in (k, 7 * k, 64 * k + 1, tokens * k):
        assert torch.equal(run(given, max_rows=max_rows, **options), whole), max_rows

    def some(rows):
        return given | {name: given[name][rows] for name in ("x", "topk_weights", "topk_ids")}

    for first, last in ((0, 1), (5, 6), (17, 100), (0, 299)):
        assert torch.equal(run(some(slice(first, last)), **options), whole[first:last])
    order = torch.randperm(tokens, device="cuda")
    assert torch.equal(run(some(order), **options), whole[order])


@pytest.mark.parametrize("max_rows", [4, 30, 1000])
def test_chunks_are_right_without_batch_invariance_too(max_rows):
    given = layer(tokens=50)
    check(given, max_rows=max_rows, add=torch.randn_like(given["x"]), scale=0.5)


@pytest.mark.parametrize("call", ["fused_experts", "workspace", "plan"])
@pytest.mark.parametrize("tokens", [8, 700])
def test_a_replay_takes_the_routing_of_the_moment(tokens, call):
    given = layer(tokens=tokens, experts=32, k=8)
    x, ids, weights = given["x"], given["topk_ids"], given["topk_weights"]
    options = {"workspace": workspace_for(given), "out": torch.empty_like(x)} if call == "workspace" else {}
    plan = gg_runtime.ExpertsPlan(**given) if call == "plan" else None
    graph, out = captured(plan.run if plan else lambda: gg_runtime.fused_experts(**given, **options))
    for seed in range(4):
        ids.copy_(torch.randint(-1, 33, ids.shape, device="cuda") if seed else torch.zeros_like(ids))
        x.copy_(torch.randn_like(x))
        weights.copy_(torch.rand_like(weights))
        out.fill_(NAN)
        garbage = torch.full((1 << 20,), NAN, device="cuda")  # what the allocator has freed is written over
        graph.replay()
        assert torch.equal(out, gg_runtime.fused_experts(**given, **options | {"out": torch.empty_like(x)}))
        assert_right(out, given)
        del garbage


def test_a_plan_that_is_dropped_leaves_its_workspace_to_its_graph():
    given = layer(tokens=100)
    want = run(given)
    plan = gg_runtime.ExpertsPlan(**given)
    graph, out = captured(plan.run)
    del plan
    garbage = torch.full((1 << 22,), NAN, device="cuda")
    out.fill_(NAN)
    graph.replay()
    assert torch.equal(out, want)
    del garbage


def test_no_call_waits_and_with_memory_nothing_is_allocated():
    given = layer(tokens=700, experts=32, k=8)
    memory = {"workspace": workspace_for(given), "out": torch.empty_like(given["x"])}
    assert_no_call_waits(
        {
            "fused_experts": lambda: gg_runtime.fused_experts(**given),
            "with a workspace": lambda: gg_runtime.fused_experts(**given, **memory),
            "a plan": gg_runtime.ExpertsPlan(**given).run,
        }
    )
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    gg_runtime.fused_experts(**given, **memory)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


def test_explain_names_the_kernels_that_a_plan_launches():
    for tokens in (0, 1, 8, 700, 5000):
        given = layer(tokens=tokens, experts=32, k=8)
        plan, told = gg_runtime.ExpertsPlan(**given), gg_runtime.explain_experts(**given)
        assert [variant for step in told.steps for variant in step["variants"]] == plan.variants
        assert told.launches == plan.launches
