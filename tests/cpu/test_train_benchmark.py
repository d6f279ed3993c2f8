"""What is asked of layers that train, of made-up figures; and the gradients that they are checked against."""

import functools
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from benchmarks import __main__ as main  # noqa: E402
from benchmarks import layer_torch, train  # noqa: E402
from benchmarks.layer_shapes import LAYERS  # noqa: E402
from benchmarks.layer_workload import activated  # noqa: E402

PARTS = {"up": 355.0, "down": 185.0, "dgated": 280.0, "dx": 400.0, "dW1": 430.0, "dW2": 220.0, "combine": 40.0}
ROW = {
    "layer": "Qwen3-30B", "failed": {},
    "us": {"fused_experts": 1700.0, "torch summed": 2600.0, "torch unrolled": 2500.0},
    "hot_us": {}, "saved": {"fused_experts": train.least_bytes(LAYERS["Qwen3-30B"])}, "parts_us": PARTS,
}  # fmt: skip


def test_parts_are_held_to_quacks_ratio_and_the_layer_to_the_faster_of_torchs():
    met = {must.name: (round(must.figure, 3), round(must.bound, 3), must.met) for must in train.musts(ROW)}
    assert met == {
        "dgated / down": (1.514, 1.568, True),
        "dx / up": (1.127, 1.101, False),
        "dW1 / up": (1.211, 1.228, True),
        "dW2 / down": (1.189, 1.211, True),
        "× quack with our combine": (1.008, 1.1, False),
        "× torch": (1.471, 1.4, True),
        "saved / least": (1.0, 1.02, True),
    }
    told = train.table([ROW])
    assert "dx / up 1.127 ≤ 1.101 NO" in told and "× torch 1.471 ≥ 1.400" in told


def test_what_failed_is_told_and_asks_for_nothing():
    row = {"layer": "7B", "failed": {"fused_experts": "no memory"}}
    assert train.musts(row) == [] and "fused_experts FAILED: no memory" in train.table([row])


def test_what_is_kept_counts_each_storage_once_and_no_parameter():
    x, w = torch.ones(4, 8, requires_grad=True), torch.ones(8, 8, requires_grad=True)
    assert train.saved_bytes(lambda: (x @ w) * (x @ w).sin(), (w,)) == 4 * 32 * 4  # x, both products, the sine


def test_a_wrong_gradient_is_told():
    shape = SimpleNamespace(top_k=1, activation="swiglu", gate_up="gate_first")
    routing = SimpleNamespace(slot=torch.tensor([0, 2, 1, 3], dtype=torch.int32))
    own = SimpleNamespace(
        shape=shape, routing=routing, ends=[2, 4], x=torch.randn(4, 8), w1=torch.randn(2, 8, 12),
        w2=torch.randn(2, 6, 8), weights=torch.rand(4, 1),
    )  # fmt: skip
    training = SimpleNamespace(own=own, gradient=torch.randn(4, 8))
    training.exact = lambda expert, slot: train.Training.exact(training, expert, slot)
    leaves = [getattr(own, name).requires_grad_() for name in train.INPUTS]
    rows = []
    for token in range(4):
        expert = 0 if token in (0, 2) else 1
        gate, up = (own.x[token] @ own.w1[expert]).chunk(2)
        rows.append(torch.nn.functional.silu(gate) * up @ own.w2[expert] * own.weights[token])
    found = torch.autograd.grad(torch.stack(rows), leaves, training.gradient)
    assert train.Training.check(training, found) < 1e-5
    for place in range(4):
        wrong = [one.clone() for one in found]
        wrong[place].view(-1)[-1] = float("nan")
        with pytest.raises(ArithmeticError):
            train.Training.check(training, wrong)


def test_a_run_fails_by_what_is_ours_alone():
    of_forms = ("ours", "list Plan, sizes on the host", "ragged rows")
    ours = [{"forms": [{"failed": {name: "wrong"}}]} for name in of_forms]
    ours += [{"train": [{"failed": {name: "wrong"}}]} for name in ("fused_experts", "parts")]
    assert all(len(main.failures(results)) == 1 for results in ours)
    peers = {"forms": [{"failed": {"torch": "wrong"}}], "train": [{"failed": {"torch summed": "no"}}]}
    assert main.failures(peers) == []


@pytest.mark.parametrize("name", layer_torch.TRAINED)
@pytest.mark.parametrize("compiled", [False, True])
def test_torchs_layers_have_the_gradients_of_a_loop_over_the_experts(name, compiled):
    tokens, k, experts, hidden, inner = 24, 3, 5, 32, 16
    shape = SimpleNamespace(top_k=k, activation="swiglu", gate_up="gate_first")
    generator = torch.Generator().manual_seed(1)
    normal = functools.partial(torch.randn, generator=generator)
    inputs = [normal(tokens, hidden), normal(experts, 2 * inner, hidden) / 6, normal(experts, hidden, inner) / 4]
    x, w1, w2 = (one.bfloat16().requires_grad_() for one in inputs)
    ids = torch.rand(tokens, experts, generator=generator).topk(k).indices.int()
    weights = torch.rand(tokens, k, generator=generator).requires_grad_()
    learned = (x, w1, w2, weights)
    forward = layer_torch.forward_of(shape, layer_torch.TRAINED[name])
    if compiled:
        forward = torch.compile(forward, fullgraph=True, backend="aot_eager")
    out = forward(x, w1.mT, w2.mT, None, None, ids, weights, torch.arange(experts, dtype=torch.int32))
    wanted = 0.0
    for slot in range(k):
        z = torch.einsum("th,tch->tc", x.float(), w1[ids[:, slot]].float())
        h = activated(z, "swiglu", "gate_first")
        wanted = wanted + weights[:, slot, None] * torch.einsum("ti,thi->th", h, w2[ids[:, slot]].float())
    of_out = normal(tokens, hidden)
    found = torch.autograd.grad((out.float() * of_out).sum(), learned)
    right = torch.autograd.grad((wanted * of_out).sum(), learned)
    for one, other in zip((out, *found), (wanted, *right)):
        assert (one.float() - other.float()).norm() < 0.02 * other.float().norm()
