"""fused_experts with e4m3 weights and scales of blocks on the CPU path, against a layer in float64; what it refuses."""

import math

import numpy as np
import pytest

import gg_runtime

torch = pytest.importorskip("torch")

from experts_oracle import ACTIVATIONS, GATE_ORDERS, GATED  # noqa: E402
from fp8_experts_oracle import assert_layer, quantized_weights  # noqa: E402

H, INNER = 272, 144  # neither is a multiple of 128


def layer(tokens=13, k=3, experts=5, hidden=H, inner=INNER, *, activation="swiglu", dtype=torch.bfloat16, seed=0):
    """Arguments by name; a quarter of the slots is of experts that are not here."""
    torch.manual_seed(seed)
    columns = 2 * inner if activation in GATED else inner
    w1, s1 = quantized_weights(torch.randn(experts, columns, hidden) / math.sqrt(max(hidden, 1)))
    w2, s2 = quantized_weights(torch.randn(experts, hidden, inner) / math.sqrt(max(inner, 1)))
    return {
        "x": torch.randn(tokens, hidden).to(dtype), "w1": w1.mT, "w2": w2.mT, "topk_weights": torch.rand(tokens, k),
        "topk_ids": torch.randint(-1, experts + 1, (tokens, k)), "w1_scale": s1, "w2_scale": s2,
    }  # fmt: skip


def check(arguments, **options):
    out = gg_runtime.fused_experts(**arguments, **options)
    named = {"weights": arguments["topk_weights"], "ids": arguments["topk_ids"]}
    rest = {name: value for name, value in arguments.items() if not name.startswith("topk")}
    assert_layer(out, **named, **rest, **options)
    return out


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("activation", "order"),
    [(one, order) for one in ACTIVATIONS for order in (GATE_ORDERS if one in GATED else ["gate_first"])],
)
def test_every_activation_in_every_order(activation, order, dtype):
    check(layer(activation=activation, dtype=dtype), activation=activation, gate_up=order)


@pytest.mark.parametrize("on_input", [False, True])
@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16], ids=str)
def test_biases_weights_a_map_and_what_is_added(on_input, weights):
    given = layer(tokens=40)
    given["topk_weights"] = given["topk_weights"].to(weights)
    biases = {"b1": torch.randn(5, 2 * INNER).bfloat16(), "b2": torch.randn(5, H).bfloat16()}
    more = {"add": torch.randn(40, H).bfloat16(), "scale": 2.5, "expert_map": torch.randint(-1, 6, (5,))}
    check(given, apply_router_weight_on_input=on_input, **biases, **more)


@pytest.mark.parametrize(
    "sizes", [(0, 3, 5, 272, 144), (9, 0, 5, 128, 128), (1, 1, 1, 16, 16), (9, 2, 4, 128, 0)], ids=str
)
def test_sizes_at_the_edge(sizes):
    check(layer(*sizes))


def test_rows_that_nobody_chose_are_not_read():
    given = layer(tokens=6)
    ids = given["topk_ids"]
    ids[2], ids[3] = -1, 99
    ids[ids == 4] = 0
    want = gg_runtime.fused_experts(**given)
    given["w1_scale"][4], given["w2_scale"][4] = float("nan"), float("inf")
    given["topk_weights"][2:4], given["x"][2:4] = float("nan"), float("nan")
    assert torch.equal(gg_runtime.fused_experts(**given), want) and not want[2:4].any()


def test_scales_lie_anywhere():
    given = layer()
    want = gg_runtime.fused_experts(**given)
    given["w1_scale"] = given["w1_scale"].mT.contiguous().mT
    given["w2_scale"] = torch.stack([given["w2_scale"]] * 2, -1)[..., 1]
    assert torch.equal(gg_runtime.fused_experts(**given), want)


def test_a_plan_computes_with_what_its_memory_holds_by_then():
    given = layer()
    plan = gg_runtime.ExpertsPlan(**given)
    given["x"].copy_(torch.randn(13, H))
    given["w2_scale"].mul_(0.5)
    assert torch.equal(plan.run(), gg_runtime.fused_experts(**given)) and plan.variants == []


def test_numpy_gives_what_torch_gives():
    ml_dtypes = pytest.importorskip("ml_dtypes")

    given = layer(dtype=torch.float16)
    arrays = {
        name: value.view(torch.uint8).numpy().view(ml_dtypes.float8_e4m3fn) if name in ("w1", "w2") else value.numpy()
        for name, value in given.items()
    }
    out = gg_runtime.fused_experts(**arrays)
    assert isinstance(out, np.ndarray)
    assert np.allclose(out.astype("float32"), gg_runtime.fused_experts(**given).float().numpy(), 0.02, 0.02)


GIVEN = layer()
REFUSALS = {
    "no scales of w1": (ValueError, {"w1_scale": None}, ["w1_scale is missing", "float8_e4m3fn", "[5, 3, 3]"]),
    "no scales of w2": (ValueError, {"w2_scale": None}, ["w2_scale is missing", "[5, 3, 2]", "128x128"]),
    "scales of 16-bit weights": (
        ValueError,
        {"w1": GIVEN["w1"].bfloat16(), "w2": GIVEN["w2"].bfloat16()},
        ["w1_scale is given", "w1 is bfloat16", "leave it out"],
    ),
    "one weight in 16 bits": (
        TypeError,
        {"w2": GIVEN["w2"].bfloat16()},
        ["w2 has dtype bfloat16", "w1 has float8_e4m3fn"],
    ),
    "the other weight in 16 bits": (
        TypeError,
        {"w1": GIVEN["w1"].bfloat16()},
        ["w2 has dtype float8_e4m3fn", "bfloat16"],
    ),
    "x in 8 bits": (TypeError, {"x": GIVEN["x"].to(torch.float8_e4m3fn)}, ["x has dtype float8_e4m3fn"]),
    "scales in 16 bits": (TypeError, {"w1_scale": GIVEN["w1_scale"].half()}, ["w1_scale has dtype float16", "float32"]),
    "scales turned": (
        ValueError,
        {"w2_scale": GIVEN["w2_scale"].mT},
        ["w2_scale has shape [5, 2, 3]", "[5, 3, 2]", "of its columns, then of its rows"],
    ),
    "a scale for each expert": (ValueError, {"w1_scale": torch.ones(5)}, ["w1_scale has shape [5]", "[5, 3, 3]"]),
    "an output that is the scales": (
        ValueError,
        {"w2_scale": torch.ones(5 * 3 * 2 * 136).as_strided((5, 3, 2), (408, 136, 1))} | {"out": "the scales"},
        ["shares memory with w2_scale"],
    ),
    "a small workspace": (
        ValueError,
        {"workspace": torch.empty(1024, dtype=torch.uint8)},
        ["workspace has 1024 bytes", "fused_experts_workspace"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "given", "words"), REFUSALS.values(), ids=REFUSALS)
def test_fused_experts_refuses(kind, given, words):
    if given.get("out") == "the scales":
        given = given | {"out": given["w2_scale"].as_strided((4080,), (1,)).view(torch.bfloat16)[: 13 * H].view(13, H)}
    with pytest.raises(kind) as caught:
        gg_runtime.fused_experts(**GIVEN | given)
    assert all(word in str(caught.value) for word in ["fused_experts", *words]), str(caught.value)


@pytest.mark.parametrize("name", ["x", "topk_weights", "w1_scale"])
def test_gradients_that_would_be_lost_are_refused(name):
    given = GIVEN | {name: GIVEN[name].clone().requires_grad_()}
    with pytest.raises(
        RuntimeError, match=rf"fused_experts: {name} requires grad, and w1_scale has no gradients: pass w1"
    ):
        gg_runtime.fused_experts(**given)
    with pytest.raises(RuntimeError, match=rf"ExpertsPlan: {name} requires grad.*{name}\.detach\(\)"):
        gg_runtime.ExpertsPlan(**given)
    with torch.no_grad():
        assert torch.equal(gg_runtime.fused_experts(**given), gg_runtime.fused_experts(**GIVEN))


def test_it_compiles_as_one_op():
    compiled = torch.compile(lambda **given: gg_runtime.fused_experts(**given), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(**GIVEN), gg_runtime.fused_experts(**GIVEN))


SIZES = {"tokens": 4096, "top_k": 8, "experts": 128, "hidden": 2048, "intermediate": 768}


def test_a_workspace_is_smaller_than_in_16_bits():
    rows = 4096 * 8
    of_sums = rows * 2 * 2 * 768  # which lie beside the rows that go in, and before those that come out
    needed = gg_runtime.fused_experts_workspace(**SIZES, use_fp8_w8a8=True)
    assert of_sums + rows * 2048 < needed < gg_runtime.fused_experts_workspace(**SIZES)
    chunked = gg_runtime.fused_experts_workspace(**SIZES, use_fp8_w8a8=True, max_rows=8192)
    assert chunked == gg_runtime.fused_experts_workspace(**SIZES | {"tokens": 1024}, use_fp8_w8a8=True)
    ungated = gg_runtime.fused_experts_workspace(**SIZES, activation="relu", use_fp8_w8a8=True)
    assert ungated < needed
