"""transformers' experts through gg_runtime on the CPU path, beside transformers' own in bfloat16 and in float32."""

import copy
import functools
import gc
import importlib
import sysconfig
import types
import weakref

import pytest

torch = pytest.importorskip("torch")
if sysconfig.get_config_var("Py_GIL_DISABLED"):
    pytest.importorskip("transformers", reason="safetensors, which it needs, has no wheel for free-threaded Pythons")

from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402

import transformers_models as models  # noqa: E402
from gg_runtime.integrations import transformers as integration  # noqa: E402

integration.register()


@pytest.fixture(autouse=True)
def without_gradients():
    with torch.no_grad():
        yield


@pytest.fixture
def calls(monkeypatch):
    """The calls of fused_experts, which are made all the same."""
    made, original = [], integration.fused_experts

    def spy(*arguments, **options):
        made.append((arguments, options))
        return original(*arguments, **options)

    monkeypatch.setattr(integration, "fused_experts", spy)
    return made


def test_registering_again_changes_nothing():
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    before = dict(ALL_EXPERTS_FUNCTIONS)
    integration.register()
    assert dict(ALL_EXPERTS_FUNCTIONS) == before and before["gg_runtime"] is integration.experts_forward


def test_words_are_those_of_the_library():
    from aot.spec import abi

    assert sorted(integration.GATED) == sorted(abi.GATED_ACTIVATIONS)
    assert sorted(integration.ORDERS) == sorted(abi.GATE_ORDERS)
    assert {"none", *integration.GATED, *integration.UNGATED} == set(abi.ACTIVATIONS)


@pytest.mark.parametrize("name", models.CONFIGS)
def test_a_models_logits_are_as_exact_as_eagers(name, calls):
    ids = models.prompt(12)
    exact = models.model(name, "eager", torch.float32)(ids).logits
    eager = models.model(name, "eager", torch.bfloat16)(ids).logits
    assert calls == []
    ours = models.model(name, "gg_runtime", torch.bfloat16)(ids).logits
    assert len(calls) == models.MOE_LAYERS[name]
    assert models.middle_error(ours, exact) <= 1.5 * models.middle_error(eager, exact) < 0.1


@pytest.mark.parametrize("name", models.CONFIGS)
def test_generated_logits_are_those_of_the_whole_sequence(name, calls):
    """Prefill, then one token a step with the cache."""
    made = models.model(name, "gg_runtime", torch.bfloat16)
    found = made.generate(
        models.prompt(7), max_new_tokens=6, do_sample=False, return_dict_in_generate=True, output_logits=True
    )
    assert len(calls) == 6 * models.MOE_LAYERS[name]
    exact, eager = (
        models.model(name, "eager", dtype)(found.sequences).logits[:, 6:-1] for dtype in (torch.float32, torch.bfloat16)
    )
    ours = torch.stack(found.logits, 1)
    assert models.middle_error(ours, exact) <= 1.5 * models.middle_error(eager, exact) < 0.1


@pytest.mark.parametrize("biased", [False, True], ids=["", "biased"])
@pytest.mark.parametrize("transposed", [False, True], ids=["EN", "EK"])
@pytest.mark.parametrize(
    ("gated", "interleaved", "activation"),
    [
        (True, False, "silu"),
        (True, True, "silu"),
        (True, False, "gelu"),
        (True, True, "gelu_pytorch_tanh"),
        (False, False, "silu"),
        (False, False, "gelu"),
        (False, False, "gelu_new"),
        (False, False, "relu"),
        (False, False, "relu2"),
    ],
)
def test_every_layout_is_as_exact_as_transformers_own(gated, interleaved, activation, transposed, biased):
    options = {"activation": activation, "gated": gated, "interleaved": interleaved}
    options |= {"transposed": transposed, "biased": biased}
    states, index, weights = models.tokens(5)
    exact = models.experts("batched_mm", **options).float()(states.float(), index, weights)
    theirs = models.experts("batched_mm", **options)(states, index, weights)
    ours = models.experts("gg_runtime", **options)(states, index, weights)
    assert ours.dtype == torch.bfloat16
    assert models.error(ours, exact) <= models.error(theirs, exact) < 0.02


@pytest.mark.parametrize("transposed", [False, True], ids=["EN", "EK"])
def test_weights_are_read_where_they_lie(transposed, calls):
    module = models.experts("gg_runtime", transposed=transposed)
    module(*models.tokens(5))
    ((_, w1, w2, *_), _) = calls[0]
    assert [w1.data_ptr(), w2.data_ptr()] == [module.gate_up_proj.data_ptr(), module.down_proj.data_ptr()]


def test_sentinels_of_expert_parallelism_are_dropped():
    """An id of num_experts stands for an expert of another GPU; its weight is 0, and here even NaN."""
    module = models.experts("gg_runtime")
    states, index, weights = models.tokens(5)
    elsewhere = torch.rand(index.shape, generator=torch.Generator().manual_seed(3)) < 0.4
    elsewhere[7] = True
    expected = module(states, index, weights.masked_fill(elsewhere, 0))
    dropped = module(states, index.masked_fill(elsewhere, 5), weights.masked_fill(elsewhere, float("nan")))
    assert torch.equal(dropped, expected) and not dropped[7].any()


def test_states_that_autocast_left_in_float32_are_cast():
    module = models.experts("gg_runtime")
    states, index, weights = models.tokens(5)
    found = module(states.float(), index, weights)
    assert found.dtype == torch.float32 and torch.equal(found.bfloat16(), module(states, index, weights))


def by_columns(tensor):
    return tensor.T.contiguous().T


@pytest.mark.parametrize("kind", ["bfloat16", "fp8"])
def test_states_ids_and_weights_may_lie_in_columns(kind):
    if kind == "fp8":
        made, hidden = models.fp8_model("Qwen3-MoE", "gg_runtime"), 256
        module = next(one for where, one in made.named_modules() if where.endswith(".experts"))
    else:
        module, hidden = models.experts("gg_runtime"), 48
    states, *routing = models.tokens(5, hidden=hidden)
    assert torch.equal(module(by_columns(states), *map(by_columns, routing)), module(states, *routing))


@pytest.mark.parametrize(("given", "computed"), [(torch.float32, torch.bfloat16), (torch.float16, torch.float16)])
def test_fp8_experts_compute_in_the_dtype_of_the_states_or_in_bfloat16(given, computed, calls):
    made = models.fp8_model("Qwen3-MoE", "gg_runtime")
    module = next(one for where, one in made.named_modules() if where.endswith(".experts"))
    states, *routing = models.tokens(8, hidden=256)
    found = module(states.to(given), *routing)
    assert found.dtype is given and calls[0][0][0].dtype is computed


def test_no_tokens():
    assert models.experts("gg_runtime")(*models.tokens(5, count=0)).shape == (0, 48)


def test_gradients_are_those_of_transformers_own():
    found, exact = [], []
    for implementation, of in (("gg_runtime", found), ("batched_mm", exact)):
        module = models.experts(implementation, biased=True)
        states, index, weights = models.tokens(5)
        if implementation == "batched_mm":
            module, states = module.float(), states.float()
        leaves = [*module.parameters(), states, weights]
        with torch.enable_grad():
            for leaf in leaves:
                leaf.requires_grad_()
            module(states, index, weights).float().square().sum().backward()
        of += [leaf.grad for leaf in leaves]
    assert len(found) == 6 and all(models.error(ours, right) < 0.02 for ours, right in zip(found, exact))


def test_float32_weights_are_refused():
    with pytest.raises(TypeError, match=r"Experts: the weights are torch\.float32.*load the model with dtype="):
        models.experts("gg_runtime").float()(*models.tokens(5))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_float32_weights_are_cast_under_autocast(dtype):
    made, (states, index, weights) = models.experts("gg_runtime", biased=True), models.tokens(5)
    master = copy.deepcopy(made).float()
    made, states = made.to(dtype), states.to(dtype)
    leaves = [states, *made.parameters()], [states.float(), *master.parameters()]
    with torch.enable_grad():
        for leaf in (*leaves[0], *leaves[1]):
            leaf.requires_grad_()
        expected = made(states, index, weights)
        with torch.autocast("cpu", dtype):
            found = master(leaves[1][0], index, weights)
        expected.float().square().sum().backward()
        found.square().sum().backward()
    assert found.dtype == torch.float32 and torch.equal(found.to(dtype), expected)
    for leaf, cast in zip(leaves[1], leaves[0]):
        assert leaf.grad.dtype == torch.float32 and torch.equal(leaf.grad.to(dtype), cast.grad)


@pytest.mark.parametrize(
    ("activation", "gated"), [("quick_gelu", True), ("relu", True), ("gelu_10", False), ("mish", False)]
)
def test_another_activation_is_refused(activation, gated):
    module = models.experts("gg_runtime", activation=activation, gated=gated)
    with pytest.raises(
        ValueError, match=r"Experts \(act_fn \w+, \{\}\): its activation is none of these; gg_runtime has"
    ):
        module(*models.tokens(5))


def test_an_activation_that_fails_on_the_cpu_is_refused():
    module = models.experts("gg_runtime")
    module.act_fn = torch.nn.PReLU(7)
    with pytest.raises(ValueError, match=r"its activation fails on the CPU, RuntimeError: .*Use model\.set_experts"):
        module(*models.tokens(5))


@pytest.mark.parametrize("value", [8.0, 0.5, 7, float("inf")])
def test_the_limit_of_gpt_oss_is_read(value):
    """Also when it changes after the first call."""
    module, arguments = gpt_oss_experts()
    before = module(*arguments)
    module.limit = value
    states, index, weights = arguments
    exact = copy.deepcopy(module).double()
    exact.config._experts_implementation = "eager"
    expected = exact(states.double(), index, weights.double())
    assert models.error(module(*arguments), expected) < 0.01
    assert torch.equal(module(*arguments), before) == (value == 7)


def test_the_factor_of_gpt_oss_is_known():
    module, arguments = gpt_oss_experts()
    module(*arguments)
    module.alpha = 1.7
    with pytest.raises(ValueError, match=r"GptOssExperts \(.*'alpha': 1.7.*\(alpha 1\.702\)"):
        module(*arguments)


OF_LIMITED_MODELS = {
    "DeepSeek-V4": "deepseek_v4.modeling_deepseek_v4.DeepseekV4Experts",
    "GLM-5-next": "glm5_next.modeling_glm5_next.Glm5NextTextExperts",
    "Hy-V4": "hy_v4.modeling_hy_v4.HYV4Experts",
    "MiniMax-M3": "minimax_m3_vl.modeling_minimax_m3_vl.MiniMaxM3VLExperts",
}


@pytest.mark.parametrize("limit", [10.0, 0.75])
@pytest.mark.parametrize("name", OF_LIMITED_MODELS)
def test_the_limits_of_a_model_are_read(name, limit):
    made, states, index, weights = limited_experts(OF_LIMITED_MODELS[name], limit)
    found = made(states, index, weights)
    exact = copy.deepcopy(made).double()
    exact.config._experts_implementation = "eager"
    assert models.error(found, exact(states.double(), index, weights.double())) < 0.01
    torch._dynamo.reset()
    assert torch.equal(torch.compile(made, backend="aot_eager", fullgraph=True)(states, index, weights), found)


def test_a_limit_behind_the_activation_is_refused():
    """As Step-3.7 has it in its last layers."""
    module = models.experts("gg_runtime")

    def apply_gate(gate_up):
        gate, up = gate_up.chunk(2, dim=-1)
        return torch.nn.functional.silu(gate).clamp(max=7) * up.clamp(-7, 7)

    module._apply_gate = apply_gate
    with pytest.raises(ValueError, match="its activation is none of these"):
        module(*models.tokens(5))


def limited_experts(path, limit):
    """Experts of a model of transformers, and tokens for them: some of gate and of up are past the limit."""
    path, _, name = f"transformers.models.{path}".rpartition(".")
    config = types.SimpleNamespace(
        num_local_experts=5, hidden_size=48, intermediate_size=32, moe_intermediate_size=32, hidden_act="silu",
        swiglu_limit=limit, swiglu_alpha=1.702, _experts_implementation="gg_runtime",
    )  # fmt: skip
    made = getattr(importlib.import_module(path), name)(config)
    models.randomize(made)
    states, index, weights = models.tokens(5)
    return made.bfloat16().requires_grad_(False), states * limit, index, weights


def gpt_oss_experts():
    (module, *_) = (m for m in models.model("gpt-oss", "gg_runtime", torch.bfloat16).modules() if hasattr(m, "alpha"))
    module.requires_grad_(False)
    states, index, weights = models.tokens(6, hidden=64)
    return module, (states * 20, index, weights)


@pytest.mark.parametrize("name", models.CONFIGS)
def test_a_compiled_model_is_one_graph(name):
    torch._dynamo.reset()
    made, ids = models.model(name, "gg_runtime", torch.bfloat16), models.prompt(12)
    compiled = torch.compile(made, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(ids, use_cache=False).logits, made(ids).logits)


def test_a_model_compiles_where_the_collector_sees_it_no_more():
    """Servers call gc.freeze once a model is loaded."""
    torch._dynamo.reset()
    made, ids = models.model("Mixtral", "gg_runtime", torch.bfloat16), models.prompt(12)
    expected = made(ids).logits
    gc.freeze()
    try:
        assert torch.equal(
            torch.compile(made, backend="aot_eager", fullgraph=True)(ids, use_cache=False).logits, expected
        )
    finally:
        gc.unfreeze()


class Owned(torch.nn.Module):
    def __init__(self, owners: list):
        super().__init__()
        self.owners = owners

    def forward(self, x):
        return x.relu()


class Squared(torch.nn.Module):
    def __init__(self, squared: bool):
        super().__init__()
        self.squared = squared

    def forward(self, x):
        rectified = x.relu()
        return rectified * rectified if self.squared else rectified


@pytest.mark.parametrize(
    "make",
    [
        Squared,
        lambda tanh: torch.nn.GELU("tanh" if tanh else "none"),
        lambda silu: torch.nn.Sequential(torch.nn.SiLU() if silu else torch.nn.ReLU()),
    ],
    ids=["a flag", "a word", "a module within"],
)
def test_activations_of_one_class_are_told_apart(make):
    torch._dynamo.reset()
    modules, arguments = (
        [models.experts("gg_runtime", activation="relu", gated=False) for _ in range(2)],
        models.tokens(5),
    )
    for module, fact in zip(modules, (False, True)):
        module.act_fn = make(fact)
    for module in modules[::-1]:
        assert torch.equal(torch.compile(module, backend="aot_eager", fullgraph=True)(*arguments), module(*arguments))
    first, _ = modules
    before = first(*arguments)
    first.act_fn.__dict__.update(make(True).__dict__)
    assert not torch.equal(first(*arguments), before)


def test_an_activation_with_arguments_is_compiled():
    module, arguments = models.experts("gg_runtime", activation="gelu"), models.tokens(5)
    del module.act_fn  # torch lets no function take the place of a module
    module.act_fn = functools.partial(torch.nn.functional.gelu, approximate="none")
    assert torch.equal(torch.compile(module, backend="aot_eager", fullgraph=True)(*arguments), module(*arguments))


class Learned(torch.nn.Module):
    """As long as beta is 1, silu."""

    def __init__(self, learn: bool):
        super().__init__()
        value = torch.ones((), dtype=torch.float64)
        if learn:
            self.beta = torch.nn.Parameter(value)
        else:
            self.register_buffer("beta", value)

    def forward(self, x):
        return x * torch.sigmoid(self.beta * x)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(
    "make", [lambda: torch.nn.PReLU(init=0.0).double(), lambda: Learned(True), lambda: Learned(False)]
)
def test_an_activation_that_depends_on_tensors_is_refused(make, gated):
    module = models.experts("gg_runtime", gated=gated)
    module.act_fn = make()
    with pytest.raises(ValueError, match="depends on tensors of the module, whose values may change"):
        module(*models.tokens(5))


def test_tensors_that_the_activation_does_not_read_are_none_of_its_concern():
    module, arguments = models.experts("gg_runtime"), models.tokens(5)
    expected = module(*arguments)
    module.register_buffer("tokens_per_expert", torch.zeros(5))
    module.act_fn = copy.copy(module.act_fn)  # asked anew
    assert torch.equal(module(*arguments), expected)


@pytest.mark.parametrize(
    "make", [lambda owner: owner.rectified, lambda owner: Owned([owner])], ids=["method", "module"]
)
def test_experts_are_freed_though_their_activation_refers_to_them(make):
    class Rectified(type(models.experts("gg_runtime", activation="relu", gated=False))):
        def rectified(self, x):
            return x.relu()

    module = models.experts("gg_runtime", activation="relu", gated=False)
    module.__class__ = Rectified
    del module.act_fn
    module.act_fn = make(module)
    before = module(*models.tokens(5))
    assert torch.equal(module(*models.tokens(5)), before)
    gone = weakref.ref(module)
    del module
    gc.collect()
    assert gone() is None


def test_a_compiled_module_sees_that_its_factor_has_changed():
    torch._dynamo.reset()
    (module, *_) = (m for m in models.model("gpt-oss", "gg_runtime", torch.bfloat16).modules() if hasattr(m, "alpha"))
    arguments = models.tokens(6, hidden=64)
    compiled = torch.compile(module, backend="aot_eager")
    assert torch.equal(compiled(*arguments), module(*arguments))
    module.alpha = 1.6
    with pytest.raises(Exception, match=r"'alpha': 1\.6"):
        compiled(*arguments)


def test_modules_that_are_compiled_one_by_one_share_a_graph():
    """More of them than torch compiles for one function before it gives up; before torch 2.13 each has its own. Another
    activation has a graph of its own.
    """
    torch._dynamo.reset()
    graphs = CompileCounterWithBackend("aot_eager")
    first, arguments = models.experts("gg_runtime"), models.tokens(5)
    shares = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)
    modules = [copy.deepcopy(first) for _ in range(torch._dynamo.config.recompile_limit + 2 if shares else 2)]
    for module in modules:
        module.compile(backend=graphs, fullgraph=True)
    expected = first(*arguments)
    assert all(torch.equal(module(*arguments), expected) for module in modules)
    assert graphs.frame_count == (1 if shares else 2)
    if not shares:
        return
    modules[0].act_fn = first.act_fn = torch.nn.GELU()
    assert torch.equal(modules[0](*arguments), first(*arguments)) and not torch.equal(first(*arguments), expected)
    assert torch.equal(modules[1](*arguments), expected) and graphs.frame_count == 2


def test_it_is_chosen_after_loading_too(calls):
    made = models.model("Mixtral", "eager", torch.bfloat16)
    made.set_experts_implementation("gg_runtime")
    made(models.prompt(3))
    made.config._experts_implementation = "eager"  # what transformers 5.0 to 5.6 leave, the other way round
    made(models.prompt(3))
    assert len(calls) == models.MOE_LAYERS["Mixtral"]


@pytest.mark.parametrize("name", models.FP8_CONFIGS)
def test_an_fp8_models_logits_are_near_those_of_its_weights(name, calls):
    ids = models.prompt(12)
    exact = models.fp8_model(name, "eager", dequantized=True)(ids).logits
    assert calls == []
    made = models.fp8_model(name, "gg_runtime")
    ours = made(ids).logits
    assert len(calls) == models.MOE_LAYERS[name]
    (_, w1, w2, *_), options = calls[0]
    (first, *_) = (module for where, module in made.named_modules() if where.endswith(".experts"))
    assert type(first).__name__ == "FP8Experts" and w1.dtype == torch.float8_e4m3fn
    places = [w1.data_ptr(), w2.data_ptr(), options["w1_scale"].data_ptr(), options["w2_scale"].data_ptr()]
    assert places == [
        getattr(first, one).data_ptr()
        for one in ("gate_up_proj", "down_proj", "gate_up_proj_scale_inv", "down_proj_scale_inv")
    ]
    assert 0.001 < models.middle_error(ours, exact) < 0.05


@pytest.mark.parametrize("alpha", [None, 1.702])
def test_the_limits_of_fp8_experts_are_read(alpha, calls):
    """As FP8 checkpoints of DeepSeek-V4 and MiniMax-M3 have them."""
    exact, made = (models.fp8_model("Qwen3-MoE", *which) for which in (("eager", "cpu", True), ("gg_runtime",)))
    for one in (*exact.modules(), *made.modules()):
        if type(one).__name__ == "FP8Experts":
            one.limit = one.swiglu_limit = 0.25
            one.swiglu_alpha = alpha
    ids = models.prompt(12)
    ours = made(ids).logits
    assert {options["swiglu_limit"] for _, options in calls} == {0.25}
    assert {options["activation"] for _, options in calls} == {"swiglu" if alpha is None else "swiglu_oai"}
    assert 0.001 < models.middle_error(ours, exact(ids).logits) < 0.05


@pytest.mark.parametrize("name", models.FP8_CONFIGS)
def test_a_compiled_fp8_model_is_one_graph(name):
    torch._dynamo.reset()
    made, ids = models.fp8_model(name, "gg_runtime"), models.prompt(12)
    compiled = torch.compile(made, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(ids, use_cache=False).logits, made(ids).logits)


def test_fp8_experts_are_refused_where_they_are_of_another_kind():
    made = models.fp8_model("Qwen3-MoE", "gg_runtime")
    (module, *_) = (module for where, module in made.named_modules() if where.endswith(".experts"))
    states, index, weights = models.tokens(8, hidden=256)
    want = module(states, index, weights)
    module.gate_up_proj_scale_inv.data = module.gate_up_proj_scale_inv.data.log2().round().exp2()
    rounded = module(states, index, weights)
    assert not torch.equal(rounded, want)
    module.gate_up_proj_scale_inv.data = module.gate_up_proj_scale_inv.data.to(torch.float8_e8m0fnu)
    assert torch.equal(module(states, index, weights), rounded), "scales of another dtype are read for what they are"
    module.activation_scheme = "static"
    with pytest.raises(ValueError, match='FP8Experts: activation_scheme is "static"'):
        module(states, index, weights)
    module.activation_scheme, module.block_size = "dynamic", (64, 64)
    with pytest.raises(ValueError, match=r"blocks of the weights are \(64, 64\).*\(128, 128\)"):
        module(states, index, weights)
    module.block_size = (128, 128)
    module.gate_up_proj.data = torch.zeros(8, 256, 128, dtype=torch.int8)
    with pytest.raises(TypeError, match=r"the weights are torch\.int8.*float8_e4m3fn"):
        module(states, index, weights)


def test_gradients_of_fp8_experts_are_refused():
    made = models.fp8_model("Qwen3-MoE", "gg_runtime")
    (module, *_) = (module for where, module in made.named_modules() if where.endswith(".experts"))
    states, index, weights = models.tokens(8, hidden=256)
    with torch.enable_grad(), pytest.raises(RuntimeError, match="x requires grad, and w1_scale has no gradients"):
        module(states.requires_grad_(), index, weights)


def test_a_model_is_exported_as_it_is():
    """torch.export traces with fake tensors: what an activation is, is asked of real ones."""
    model, ids = models.model("Mixtral", "gg_runtime", torch.bfloat16), models.prompt(6)
    with torch.no_grad():
        program = torch.export.export(model, (ids,), {"use_cache": False})
        assert any(node.target is torch.ops.gg_runtime.fused_experts.default for node in program.graph.nodes)
        assert torch.equal(program.module()(ids, use_cache=False).logits, model(ids, use_cache=False).logits)
