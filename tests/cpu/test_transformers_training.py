"""Models of transformers that train through gg_runtime on the CPU path, beside transformers' own eager experts."""

import sysconfig

import pytest

torch = pytest.importorskip("torch")
if sysconfig.get_config_var("Py_GIL_DISABLED"):
    pytest.importorskip("transformers", reason="safetensors, which it needs, has no wheel for free-threaded Pythons")

import transformers_models as models  # noqa: E402
from gg_runtime.integrations import transformers as integration  # noqa: E402

integration.register()
STEPS = 20


def trained(name, implementation, dtype, checkpointing=False):
    """(gradients of the first step by name, the losses) of a model that learns one batch by heart."""
    model = models.model(name, implementation, dtype).train()
    if checkpointing:
        model.gradient_checkpointing_enable()
    batch = models.prompt(16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gradients, losses = {}, []
    for _ in range(STEPS):
        loss = model(batch, labels=batch).loss
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        gradients = gradients or {
            key: one.grad.clone() for key, one in model.named_parameters() if one.grad is not None
        }
        optimizer.step()
        losses.append(loss.item())
    return gradients, torch.tensor(losses, dtype=torch.float64)


@pytest.mark.parametrize("name", ["Mixtral", "Qwen3-MoE", "gpt-oss"])
def test_a_model_learns_as_it_does_with_eager_experts(name):
    exact, right = trained(name, "eager", torch.float32)
    plain, usual = trained(name, "eager", torch.bfloat16)
    ours, losses = trained(name, "gg_runtime", torch.bfloat16)
    assert ours.keys() == plain.keys()
    error, error_of_plain = (
        torch.tensor([models.error(found[key], exact[key]) for key in exact if exact[key].any()])
        for found in (ours, plain)
    )
    assert error.median() <= 1.25 * error_of_plain.median() and error.max() <= 2 * error_of_plain.max()
    assert right[-1] < 0.7 * right[0], "nothing was learned"
    assert (losses - right).abs().max() <= 2 * (usual - right).abs().max() + 0.02


def test_a_model_learns_the_same_under_checkpointing():
    gradients, losses = trained("Mixtral", "gg_runtime", torch.bfloat16)
    again, same = trained("Mixtral", "gg_runtime", torch.bfloat16, checkpointing=True)
    assert torch.equal(losses, same) and all(torch.equal(again[key], gradients[key]) for key in gradients)
