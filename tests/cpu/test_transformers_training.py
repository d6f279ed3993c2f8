"""Models of transformers that train through gg_runtime on the CPU path, beside transformers' own eager experts."""

import sysconfig

import pytest

torch = pytest.importorskip("torch")
if sysconfig.get_config_var("Py_GIL_DISABLED"):
    pytest.importorskip("transformers", reason="safetensors, which it needs, has no wheel for free-threaded Pythons")

import transformers_models as models  # noqa: E402
from gg_runtime.integrations import transformers as integration  # noqa: E402

integration.register()


@pytest.mark.parametrize(("name", "steps"), [("Mixtral", 50), ("Qwen3-MoE", 50), ("gpt-oss", 20)])
def test_a_model_learns_as_it_does_with_eager_experts(name, steps):
    models.assert_learns_alike(
        models.trained(name, "gg_runtime", torch.bfloat16, steps),
        models.trained(name, "eager", torch.bfloat16, steps),
        models.trained(name, "eager", torch.float32, steps),
    )


def test_a_model_learns_the_same_under_checkpointing_and_compiled():
    """One graph of the compiler holds the whole model."""
    gradients, losses = models.trained("Mixtral", "gg_runtime", torch.bfloat16, 5)
    for options in ({"checkpointing": True}, {"compiled": {"backend": "aot_eager", "fullgraph": True}}):
        again, same = models.trained("Mixtral", "gg_runtime", torch.bfloat16, 5, **options)
        assert torch.equal(losses, same) and all(torch.equal(again[key], gradients[key]) for key in gradients), options
