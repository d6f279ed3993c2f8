"""Models of transformers that train through gg_runtime, eager and under CUDA graphs, beside transformers' own."""

import pytest

import inductor_process

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", minversion="5.7")

import transformers_models as models  # noqa: E402
from gg_runtime.integrations import transformers as integration  # noqa: E402

integration.register()
NAMES = ("Mixtral", "Qwen3-MoE")
STEPS = 50


def eagers(name):
    """In bfloat16 and in float32."""
    return [models.trained(name, "eager", dtype, STEPS, device="cuda") for dtype in (torch.bfloat16, torch.float32)]


@pytest.mark.parametrize("name", [*NAMES, "gpt-oss"])
def test_a_model_learns_as_it_does_with_eager_experts(name):
    usual, exact = eagers(name)
    ours = models.trained(name, "gg_runtime", torch.bfloat16, STEPS, device="cuda")
    models.assert_learns_alike(ours, usual, exact)


def test_a_model_learns_the_same_under_checkpointing():
    gradients, losses = models.trained("Mixtral", "gg_runtime", torch.bfloat16, STEPS, device="cuda")
    again, same = models.trained("Mixtral", "gg_runtime", torch.bfloat16, STEPS, device="cuda", checkpointing=True)
    models.assert_learns_alike((again, same), *eagers("Mixtral"))
    assert all(models.error(again[key], gradients[key]) < 0.01 for key in gradients)
    assert abs(same[0] - losses[0]) < 1e-3


# One graph of the compiler, captured as CUDA graphs. The bound is that of the eager run above.
COMPILED = """
import torch
import transformers_models as models
from gg_runtime.integrations import transformers as integration

integration.register()
torch._dynamo.utils.counters.clear()
options = {{"fullgraph": True, "mode": "reduce-overhead"}}
ours = models.trained({name!r}, "gg_runtime", torch.bfloat16, {steps}, device="cuda", compiled=options)
counters = torch._dynamo.utils.counters
assert not counters["graph_break"] and counters["inductor"]["cudagraph_skips"] == 0, counters
usual, exact = (
    models.trained({name!r}, "eager", dtype, {steps}, device="cuda") for dtype in (torch.bfloat16, torch.float32)
)
models.assert_learns_alike(ours, usual, exact)
"""


@inductor_process.needs_inductor
@pytest.mark.parametrize("name", NAMES)
def test_a_compiled_model_learns_under_cuda_graphs(name, tmp_path):
    inductor_process.run(COMPILED.format(name=name, steps=STEPS), tmp_path)
