"""Gradients of fused_experts under torch.compile on the CPU: one graph, the bits of eager, ops that torch accepts."""

import pytest

pytest.importorskip("torch")

import torch

import gg_runtime
import gg_runtime.torch
from train_oracle import gradients_of, leaves_of, make

OPTIONS = {
    "plain": {},
    "on input": {"apply_router_weight_on_input": True},
    "mapped": {"expert_map": torch.tensor([3, -1, 0, 1, 4, 2], dtype=torch.int32)},
    "no activation": {"activation": None},
}


@pytest.fixture(autouse=True)
def nothing_compiled_before():
    torch._dynamo.reset()


def compiled(**options):
    return torch.compile(
        lambda **given: gg_runtime.fused_experts(**given) * 2, fullgraph=True, backend="aot_eager", **options
    )


def eager(**given):
    return gg_runtime.fused_experts(**given) * 2


@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_compiled_layer_has_the_same_bits(options, transposed):
    options = dict(options)
    arguments = make(biases=True, transposed=transposed, activation=options.pop("activation", "swiglu")) | options
    gradient = torch.randn(13, 24).bfloat16()
    want, found = (gradients_of(function, arguments, gradient) for function in (eager, compiled()))
    assert all(torch.equal(found[name], want[name]) for name in want)
    assert found["w1"].stride() == want["w1"].stride()


def test_another_number_of_tokens_is_no_new_graph():
    function = compiled(dynamic=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for tokens in (13, 7, 29):
            arguments, gradient = make(tokens=tokens), torch.randn(tokens, 24).bfloat16()
            want, found = (gradients_of(one, arguments, gradient) for one in (eager, function))
            assert all(torch.equal(found[name], want[name]) for name in want)


@pytest.mark.parametrize("name", ["w1", "topk_weights"])
def test_one_gradient_alone(name):
    arguments = make(biases=True)
    gradient = torch.randn(13, 24).bfloat16()
    found = []
    for function in (eager, compiled()):
        leaves = leaves_of(arguments, needs=(name,))
        function(**leaves).backward(gradient)
        found.append(leaves[name].grad)
    assert torch.equal(*found)


def test_torch_accepts_the_ops():
    given = leaves_of(make(biases=True))
    of_layer = (given["activation"], "gate_first", None, 1.0, False)
    inputs = [given[name] for name in ("x", "w1", "w2", "topk_weights", "topk_ids", "b1", "b2")]
    ops = torch.ops.gg_runtime
    torch.library.opcheck(ops.experts_recorded.default, (*inputs, None, None, *of_layer))
    with torch.no_grad():
        _, *kept = ops.experts_recorded(*inputs, None, None, *of_layer)
    x, w1, w2, weights, _, _, b2 = (tensor.detach() for tensor in inputs)
    gradient = torch.randn(13, 24).bfloat16()
    for needs in ([True] * 6, [False, True, False, True, False, True], [True, False, True, False, True, False]):
        torch.library.opcheck(
            ops.experts_gradients.default,
            (gradient, x, kept[0], w1, w2, weights, b2, *kept[1:], *of_layer, needs),
        )


def test_a_call_with_main_gradients_runs_between_two_graphs():
    arguments = leaves_of(make(transposed=False))
    for name in ("w1", "w2"):
        arguments[name].main_grad = torch.zeros_like(arguments[name], dtype=torch.float32)

    def function():
        return gg_runtime.torch.experts.fused_experts(**arguments, into_main_grad=True) * 2

    with pytest.raises(Exception, match="into_main_grad is for eager calls"):
        torch.compile(function, backend="aot_eager", fullgraph=True)()
    torch.compile(function, backend="aot_eager")().sum().backward()
    assert arguments["w1"].grad is None and arguments["w1"].main_grad.any() and arguments["w2"].main_grad.any()
