"""Layers that train under torch.compile with Inductor, in processes that have torch's Triton."""

import pytest

import inductor_process

torch = pytest.importorskip("torch")

PRELUDE = """
import torch
import gg_runtime
from train_oracle import gradients_of, layer, make

def arguments_for(*sizes, **options):
    return make(*sizes, device="cuda", **options)

def gradient_for(arguments, seed=1):
    torch.manual_seed(seed)
    return torch.randn(arguments["x"].shape, device="cuda").to(arguments["x"].dtype)
"""

SAME_BITS = """
arguments = arguments_for(300, 4, 8, 256, 128, biases=True)
compiled = torch.compile(lambda **given: gg_runtime.fused_experts(**given), fullgraph=True, dynamic={dynamic})
for tokens in (300, 77) if {dynamic} else (300,):
    part = dict(arguments, **{{name: arguments[name][:tokens] for name in ("x", "topk_weights", "topk_ids")}})
    gradient = gradient_for(part)
    want, found = (gradients_of(one, part, gradient) for one in (gg_runtime.fused_experts, compiled))
    for name in want:
        assert torch.equal(found[name], want[name]), name
"""

# 50 steps of a layer and its router, under CUDA graphs, beside the layer that eager torch makes.
LEARNS = """
arguments = arguments_for(256, 2, 8, 128, 64)
x, target = arguments["x"], gradient_for(arguments, seed=5)
losses = {}
for name, function in {"ours": gg_runtime.fused_experts, "torch": layer}.items():
    up, down = (torch.nn.Parameter(arguments[name].mT.clone()) for name in ("w1", "w2"))
    torch.manual_seed(0)
    router = torch.nn.Parameter((torch.randn(128, 8, device="cuda") / 10).bfloat16())

    def forward(x, up, down, router, function=function):
        weights, ids = (x @ router).float().softmax(-1).topk(2)
        return function(x, up.mT, down.mT, weights, ids)

    run = torch.compile(forward, fullgraph=True, mode="reduce-overhead") if name == "ours" else forward
    optimizer = torch.optim.SGD([up, down, router], lr=0.2)
    losses[name] = []
    for _ in range(50):
        torch.compiler.cudagraph_mark_step_begin()
        loss = (run(x, up, down, router).float() - target.float()).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses[name].append(loss.item())
ours, theirs = (torch.tensor(losses[name]) for name in ("ours", "torch"))
assert theirs[-1] < 0.97 * theirs[0], ("nothing was learned", losses)
torch.testing.assert_close(ours, theirs, rtol=0.01, atol=0)
assert torch._dynamo.utils.counters["inductor"]["cudagraph_skips"] == 0
"""


@inductor_process.needs_inductor
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_compiled_layer_has_the_same_bits(dynamic, tmp_path):
    inductor_process.run(PRELUDE + SAME_BITS.format(dynamic=dynamic), tmp_path)


@inductor_process.needs_inductor
def test_a_tiny_layer_trains_under_cuda_graphs_as_eager_torch_does(tmp_path):
    inductor_process.run(PRELUDE + LEARNS, tmp_path)
