"""fused_experts on the CPU path, against a layer in float64; and what it refuses."""

import inspect
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gg_runtime
from arrays import ExchangeArray, fresh_address

torch = pytest.importorskip("torch")

from devices import H200  # noqa: E402
from experts_oracle import ACTIVATIONS, GATE_ORDERS, GATED, assert_layer  # noqa: E402

DTYPES = [torch.float16, torch.bfloat16]


def layer(tokens=13, k=3, experts=5, hidden=24, inner=20, *, activation="swiglu", dtype=torch.bfloat16, seed=0):
    """x, w1, w2, weights and ids; a quarter of the slots is of experts that are not here."""
    torch.manual_seed(seed)
    columns = 2 * inner if activation in GATED else inner
    x = torch.randn(tokens, hidden).to(dtype)
    w1 = (torch.randn(experts, columns, hidden) / math.sqrt(max(hidden, 1))).to(dtype).mT
    w2 = (torch.randn(experts, hidden, inner) / math.sqrt(max(inner, 1))).to(dtype).mT
    weights = torch.rand(tokens, k)
    ids = torch.randint(-1, experts + 1, (tokens, k))
    return x, w1, w2, weights, ids


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("order", GATE_ORDERS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation_in_every_order(activation, order, dtype):
    arguments = layer(activation=activation, dtype=dtype)
    out = gg_runtime.fused_experts(*arguments, activation=activation, gate_up=order)
    assert_layer(out, *arguments, activation=activation, gate_up=order)


@pytest.mark.parametrize("limit", [0.25, 1.5, float("inf")])
@pytest.mark.parametrize("activation", ["swiglu", "swiglu_oai"])
def test_gate_and_up_are_limited(activation, limit):
    arguments = layer()
    given = {"activation": activation, "swiglu_limit": limit, "gate_up": "up_first"}
    out = gg_runtime.fused_experts(*arguments, **given)
    assert_layer(out, *arguments, **given)
    assert torch.equal(gg_runtime.ExpertsPlan(*arguments, **given).run(), out)


@settings(max_examples=60, deadline=None)
@given(
    tokens=st.integers(0, 9), k=st.sampled_from([0, 1, 2, 5, 16]), experts=st.sampled_from([1, 2, 7]),
    hidden=st.sampled_from([0, 1, 8, 17]), inner=st.sampled_from([0, 1, 8, 9]), on_input=st.booleans(), data=st.data(),
)  # fmt: skip
def test_any_sizes_and_arguments(tokens, k, experts, hidden, inner, on_input, data):
    activation = data.draw(st.sampled_from(list(ACTIVATIONS)))
    x, w1, w2, weights, ids = layer(tokens, k, experts, hidden, inner, activation=activation)
    options = {"activation": activation, "apply_router_weight_on_input": on_input}
    if data.draw(st.booleans()):
        options |= {"b1": torch.randn(experts, w1.shape[2]).bfloat16(), "b2": torch.randn(experts, hidden).bfloat16()}
    if data.draw(st.booleans()):
        options["expert_map"] = torch.randint(-1, experts + 1, (data.draw(st.integers(0, 6)),))
    if data.draw(st.booleans()):
        options |= {"add": torch.randn(tokens, hidden).bfloat16(), "scale": 2.5}
    if data.draw(st.booleans()):
        ids = ids.int()
    weights = weights.to(data.draw(st.sampled_from([torch.float32, torch.float16, torch.bfloat16])))
    assert_layer(gg_runtime.fused_experts(x, w1, w2, weights, ids, **options), x, w1, w2, weights, ids, **options)


def test_a_workspace_lies_anywhere_on_the_cpu():
    arguments = layer()
    needed = gg_runtime.fused_experts_workspace(13, 3, 5, 24, 20)
    memory = torch.empty(needed + 1, dtype=torch.uint8)
    assert_layer(gg_runtime.fused_experts(*arguments, workspace=memory[1:]), *arguments)


def test_the_default_device_of_torch_does_not_matter():
    x, w1, w2, weights, ids = layer()
    w1.requires_grad_()
    with torch.device("meta"):
        out = gg_runtime.fused_experts(x, w1, w2, weights, ids, scale=0.5)
        out.float().sum().backward()
        with torch.no_grad():
            gg_runtime.combine(x, ids.new_zeros(13, 1, dtype=torch.int32), scale=0.5)
    assert w1.grad.any()
    assert_layer(out.detach(), x, w1.detach(), w2, weights, ids, scale=0.5)


def test_numpy_gives_what_torch_gives():
    for activation in ACTIVATIONS:
        arguments = layer(activation=activation, dtype=torch.float16)
        out = gg_runtime.fused_experts(*(array.numpy() for array in arguments), activation=activation)
        assert isinstance(out, np.ndarray) and out.dtype == np.float16
        assert_layer(torch.from_numpy(out), *arguments, activation=activation)


@pytest.mark.parametrize("recorded", [False, True])
def test_a_scale_is_a_number(recorded):
    x, *others = layer()
    x.requires_grad_(recorded)
    scale = torch.tensor(2.0, requires_grad=recorded)
    with pytest.raises(TypeError, match="fused_experts: scale is a Tensor; a number is needed"):
        gg_runtime.fused_experts(x, *others, scale=scale)
    with pytest.raises(TypeError, match="combine: scale is a Tensor; a number is needed"):
        gg_runtime.combine(x.detach(), torch.zeros(13, 1).int(), scale=scale)
    assert gg_runtime.fused_experts(x, *others, scale=np.float32(2)).shape == x.shape


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize(
    "wrong",
    [
        {"topk_weights": torch.ones(13, 1)},
        {"topk_weights": torch.ones(13, 3, dtype=torch.float64)},
        {"add": torch.ones(13, 1).bfloat16()},
        {"add": torch.ones(13, 24)},
    ],
    ids=["slots", "float64", "a column", "float32"],
)
def test_weights_on_the_input_are_neither_broadcast_nor_converted(recorded, wrong):
    given = dict(zip(("x", "w1", "w2", "topk_weights", "topk_ids"), layer())) | wrong
    given["x"].requires_grad_(recorded)
    (name,) = wrong
    with pytest.raises((ValueError, TypeError), match=f"fused_experts: {name}"):
        gg_runtime.fused_experts(**given, apply_router_weight_on_input=True)


def test_large_sums_are_quiet():
    """exp of them would overflow in float32."""
    x, w1, w2, weights, ids = (array.numpy() for array in layer(activation="silu", dtype=torch.float16))
    with np.errstate(all="raise", under="ignore"):
        out = gg_runtime.fused_experts(x * 100, w1, w2 / 100, weights, ids, activation="silu")
    assert np.isfinite(out).all()


def test_given_memory_is_written_and_handed_back():
    arguments = layer()
    out = torch.full((13, 24), float("nan")).bfloat16()
    workspace = torch.empty(gg_runtime.fused_experts_workspace(13, 3, 5, 24, 20), dtype=torch.uint8)
    assert gg_runtime.fused_experts(*arguments, out=out, workspace=workspace, max_rows=39) is out
    assert torch.equal(out, gg_runtime.fused_experts(*arguments))
    shared = torch.randn(13, 24).bfloat16()
    want = gg_runtime.fused_experts(*arguments, add=shared, scale=0.5)
    assert gg_runtime.fused_experts(*arguments, add=shared, scale=0.5, out=shared) is shared
    assert torch.equal(shared, want)


def test_rows_that_nobody_chose_are_not_read():
    x, w1, w2, weights, ids = layer(tokens=6)
    ids[2], ids[3] = -1, 99
    ids[ids == 4] = 0
    want = gg_runtime.fused_experts(x, w1, w2, weights, ids)
    w1[4], w2[4] = float("nan"), float("nan")
    weights[2:4], x[2:4] = float("nan"), float("nan")
    assert torch.equal(gg_runtime.fused_experts(x, w1, w2, weights, ids), want) and not want[2:4].any()


SIZES = {"tokens": 8192, "top_k": 8, "experts": 128, "hidden": 2048, "intermediate": 768}


def test_a_workspace_holds_rows_and_routing():
    rows, per_row = 8192 * 8, 2 * (2048 + 2 * 768) + 3 * 4
    assert rows * per_row <= gg_runtime.fused_experts_workspace(**SIZES) <= rows * per_row * 1.01
    ungated = gg_runtime.fused_experts_workspace(**SIZES, activation="relu2")
    assert ungated < gg_runtime.fused_experts_workspace(**SIZES)
    assert gg_runtime.fused_experts_workspace(**SIZES | {"tokens": 0}) == 0


def test_a_workspace_is_enough_for_fewer_tokens_and_smaller_for_chunks():
    needed = [gg_runtime.fused_experts_workspace(**SIZES | {"tokens": tokens}) for tokens in range(0, 5000, 37)]
    assert needed == sorted(needed)
    chunked = gg_runtime.fused_experts_workspace(**SIZES, max_rows=8192)
    assert chunked == gg_runtime.fused_experts_workspace(**SIZES | {"tokens": 1024}) < needed[-1]
    assert chunked == gg_runtime.fused_experts_workspace(**SIZES, max_rows=8199)
    assert gg_runtime.fused_experts_workspace(**SIZES | {"tokens": 5}, max_rows=10**12) == (
        gg_runtime.fused_experts_workspace(**SIZES | {"tokens": 5})
    )


@pytest.mark.parametrize(
    ("kind", "given", "words"),
    [
        (ValueError, {"tokens": -1}, ["tokens is -1", "0 to 2147483647"]),
        (ValueError, {"experts": 0}, ["experts is 0", "1 to 1023"]),
        (ValueError, {"tokens": 2**30}, ["tokens * top_k is 8589934592"]),
        (ValueError, {"max_rows": 7}, ["max_rows is 7", "k=8"]),
        (ValueError, {"activation": "tanh"}, ["activation is 'tanh'", "swiglu", "relu2"]),
        (ValueError, {"tokens": 2**28, "top_k": 4, "hidden": 2**31 - 1}, ["address space", "max_rows"]),
        (TypeError, {"max_rows": 8.0}, ["max_rows is a float"]),
    ],
)
def test_no_call_has_such_sizes(kind, given, words):
    with pytest.raises(kind) as caught:
        gg_runtime.fused_experts_workspace(**SIZES | given)
    assert str(caught.value).startswith("fused_experts_workspace: "), str(caught.value)
    assert all(word in str(caught.value) for word in words), str(caught.value)


X, W1, W2, WEIGHTS, IDS = layer()
NAMES = ["x", "w1", "w2", "topk_weights", "topk_ids"]
WORKSPACE = torch.empty(20000, dtype=torch.uint8)
REFUSALS = {
    "float32 rows": (TypeError, {"x": X.float()}, ["x", "float32", "float16 or bfloat16"]),
    "rows with gaps": (ValueError, {"x": X.mT.contiguous().mT}, ["x", "stride 13", "pass a row-major array"]),
    "no array": (TypeError, {"topk_weights": [[1.0]]}, ["topk_weights", "list"]),
    "a matrix of weights": (ValueError, {"w1": W1[0]}, ["w1", "[24, 40]", "each expert"]),
    "weights of another dtype": (TypeError, {"w2": W2.half()}, ["w2", "float16", "x has bfloat16"]),
    "w1 not turned": (ValueError, {"w1": W1.mT}, ["w1", "40 rows", "H=24", "w1.mT"]),
    "w2 not turned": (ValueError, {"w2": W2.mT}, ["w2", "[5, 24, 20]", "[5, 20, 24]", "w2.mT"]),
    "no gate": (
        ValueError,
        {"w1": W1[:, :, :20]},
        ["w2", "[5, 20, 24]", "[5, 10, 24]", "2 I columns", "where there is no gate, pass activation='silu'"],
    ),
    "half a gate": (ValueError, {"w1": W1[:, :, :39]}, ["w1", "39 columns", "gated"]),
    "a gate that is not asked for": (
        ValueError,
        {"activation": "silu"},
        ["w2", "[5, 40, 24]", "I columns", "where they are gate and up, pass activation='swiglu'"],
    ),
    "other experts": (ValueError, {"w2": W2[:4]}, ["w2", "E=4", "w1 has 5"]),
    "no experts": (ValueError, {"w1": W1[:0], "w2": W2[:0]}, ["w1", "E=0", "1 to 1023"]),
    "ids of floats": (TypeError, {"topk_ids": IDS.float()}, ["topk_ids", "int32 or int64"]),
    "ids of other tokens": (ValueError, {"topk_ids": IDS[:5]}, ["topk_ids", "[5, 3]", "13 tokens"]),
    "ids with gaps": (ValueError, {"topk_ids": IDS.mT.contiguous().mT}, ["topk_ids", "pass a contiguous copy"]),
    "weights of other slots": (ValueError, {"topk_weights": WEIGHTS[:, :2]}, ["topk_weights", "[13, 2]", "topk_ids"]),
    "weights of integers": (TypeError, {"topk_weights": IDS}, ["topk_weights", "int64", "float32"]),
    "an unknown activation": (ValueError, {"activation": "silu_and_mul"}, ["activation is 'silu_and_mul'", "geglu"]),
    "None by name": (ValueError, {"activation": "none"}, ["activation is 'none'", "swiglu"]),
    "an activation that is no word": (TypeError, {"activation": 3}, ["activation is an int"]),
    "an unknown order": (ValueError, {"gate_up": "blocks"}, ["gate_up is 'blocks'", "up_first", "interleaved"]),
    "a limit of another gate": (
        ValueError,
        {"activation": "geglu", "swiglu_limit": 7.0},
        ["swiglu_limit goes with", "is 'geglu'; leave it out"],
    ),
    "a limit of nothing": (ValueError, {"swiglu_limit": 0.0}, ["swiglu_limit is 0.0", "above 0"]),
    "a limit that is a tensor": (TypeError, {"swiglu_limit": torch.tensor(7.0)}, ["swiglu_limit is a Tensor"]),
    "a bias of another width": (ValueError, {"b1": torch.zeros(5, 20).bfloat16()}, ["b1", "[5, 20]", "[5, 40]"]),
    "a bias of another dtype": (TypeError, {"b2": torch.zeros(5, 24)}, ["b2", "float32", "that of x, bfloat16"]),
    "a bias that is a number": (ValueError, {"b1": X[0, 0]}, ["b1", "shape []", "or None"]),
    "a scale that is a number": (ValueError, {"w1_scale": torch.tensor(2.0)}, ["w1_scale", "shape []", "or None"]),
    "a map of floats": (TypeError, {"expert_map": torch.zeros(3)}, ["expert_map", "float32"]),
    "rows to add of another size": (ValueError, {"add": X[:5]}, ["add", "[5, 24]", "[13, 24]"]),
    "rows to add of another dtype": (TypeError, {"add": X.half()}, ["add", "float16", "bfloat16"]),
    "an output of another size": (ValueError, {"out": X[:, :8].clone()}, ["out", "[13, 8]", "[13, 24]"]),
    "an output of another dtype": (TypeError, {"out": torch.zeros(13, 24)}, ["out", "float32"]),
    "an output that is x": (ValueError, {"out": X}, ["out", "shares memory with x"]),
    "an output with gaps": (ValueError, {"out": torch.zeros(24, 13).bfloat16().mT}, ["out", "stride 13"]),
    "a part of what is added": (
        ValueError,
        {"add": torch.zeros(26, 24).bfloat16()[1:14]} | {"out": "the other part"},
        ["out", "shares memory with add"],
    ),
    "an output and a gradient": (
        RuntimeError,
        {"w1": W1.clone().requires_grad_(), "out": torch.empty(13, 24).bfloat16()},
        ["w1 requires grad", "out has no gradients"],
    ),
    "memory and a gradient": (
        RuntimeError,
        {"w1": W1.clone().requires_grad_(), "workspace": torch.empty(10**5, dtype=torch.uint8)},
        ["w1 requires grad", "workspace is not for a call that keeps what its gradients need: leave it out"],
    ),
    "a bound and a gradient": (
        RuntimeError,
        {"b2": torch.zeros(5, 24).bfloat16().requires_grad_(), "max_rows": 8},
        ["b2 requires grad", "max_rows is not for a call that keeps"],
    ),
    "no number of rows": (TypeError, {"max_rows": "8"}, ["max_rows is a str"]),
    "several numbers of rows": (TypeError, {"max_rows": IDS[0]}, ["max_rows is a Tensor", "an integer is needed"]),
    "rows beyond 64 bits": (ValueError, {"max_rows": 2**70}, ["max_rows is an integer beyond 64 bits"]),
    "a scale beyond a float": (ValueError, {"scale": 10**400}, ["scale is an integer beyond what a float holds"]),
    "a scale beyond a float32": (ValueError, {"scale": 1e39}, ["scale is beyond what a float32 holds"]),
    "fewer rows than a token has": (ValueError, {"max_rows": 2}, ["max_rows is 2", "k=3"]),
    "a small workspace": (ValueError, {"workspace": WORKSPACE[:640]}, ["workspace", "640 bytes", "needs"]),
    "a workspace with gaps": (ValueError, {"workspace": WORKSPACE[::2]}, ["workspace", "in one piece"]),
    "a workspace that is no array": (TypeError, {"workspace": 20000}, ["workspace", "int"]),
    "a workspace elsewhere": (
        ValueError,
        {"workspace": ExchangeArray(20000, address=fresh_address(0), dtype="uint8")},
        ["workspace", "cuda:0", "the CPU"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "given", "words"), REFUSALS.values(), ids=REFUSALS)
def test_fused_experts_refuses(kind, given, words):
    if given.get("out") == "the other part":
        block = torch.zeros(26, 24).bfloat16()
        given = {"add": block[1:14], "out": block[2:15]}
    arguments = dict(zip(NAMES, (X, W1, W2, WEIGHTS, IDS))) | given
    with pytest.raises(kind) as caught:
        gg_runtime.fused_experts(**arguments)
    assert all(word in str(caught.value) for word in ["fused_experts", *words]), str(caught.value)


REPEATS = [
    (function, name)
    for function in ("ExpertsPlan", "explain_experts")
    for name, (kind, given, _) in REFUSALS.items()
    if kind is not RuntimeError and given.get("out") != "the other part"
    and given.keys() <= inspect.signature(getattr(gg_runtime, function)).parameters.keys()
]  # fmt: skip


@pytest.mark.parametrize(("function", "name"), REPEATS)
def test_what_repeats_and_explains_a_layer_refuses_the_same(function, name):
    kind, given, words = REFUSALS[name]
    device = {"device": H200} if function == "explain_experts" else {}
    with pytest.raises(kind) as caught:
        getattr(gg_runtime, function)(**dict(zip(NAMES, (X, W1, W2, WEIGHTS, IDS))) | given, **device)
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize("name", ["x", "w2", "topk_weights", "b1", "b2", "add"])
def test_a_plan_names_the_input_whose_gradient_would_be_lost(name):
    made = {"b1": torch.zeros(5, 40).bfloat16(), "b2": torch.zeros(5, 24).bfloat16(), "add": X.clone()}
    arguments = dict(zip(NAMES, (X, W1, W2, WEIGHTS, IDS))) | made
    arguments[name] = arguments[name].clone().requires_grad_()
    with pytest.raises(RuntimeError, match=rf"^ExpertsPlan: {name} requires grad.*{name}\.detach\(\)"):
        gg_runtime.ExpertsPlan(**arguments)


class Bytes:
    """As memory pools hand it out: an array interface and no dtype."""

    def __init__(self, size):
        self.memory = np.empty(size, np.uint8)
        self.__array_interface__ = self.memory.__array_interface__


def test_a_workspace_may_be_a_buffer_without_a_dtype():
    arguments = [one.numpy() for one in layer(dtype=torch.float16)]
    workspace = Bytes(len(WORKSPACE))
    given = gg_runtime.fused_experts(*arguments, workspace=workspace)
    np.testing.assert_array_equal(given, gg_runtime.fused_experts(*arguments))


def test_one_row_is_added_to_in_place_whatever_its_strides():
    given = [X[:1], W1, W2, WEIGHTS[:1], IDS[:1]]
    wanted = gg_runtime.fused_experts(*given, add=torch.ones_like(X[:1]))
    out = torch.ones_like(X[:1])
    gg_runtime.fused_experts(*given, add=out.as_strided(out.shape, (999, 1)), out=out)
    assert torch.equal(out, wanted)


def test_a_workspace_shares_memory_with_nothing():
    block = torch.empty(40000, dtype=torch.uint8)
    out = block[1280 : 1280 + 13 * 24 * 2].view(torch.bfloat16).view(13, 24)
    with pytest.raises(ValueError, match="workspace shares memory with out"):
        gg_runtime.fused_experts(X, W1, W2, WEIGHTS, IDS, workspace=block, out=out)


def test_frameworks_are_not_mixed_on_the_cpu():
    with pytest.raises(TypeError, match="fused_experts: torch tensors and other arrays"):
        gg_runtime.fused_experts(X, W1, W2, WEIGHTS, IDS, expert_map=np.zeros(3, np.int32))
    with pytest.raises(TypeError, match="fused_experts: torch tensors and other arrays"):
        gg_runtime.fused_experts(X, W1, W2, WEIGHTS.numpy(), IDS)
