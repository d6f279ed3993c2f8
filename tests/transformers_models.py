"""Models of transformers with tiny random weights, by name, and experts of any kind."""

import torch
from transformers import AutoModelForCausalLM, DeepseekV3Config, GptOssConfig, MixtralConfig, Qwen3MoeConfig
from transformers.activations import ACT2FN
from transformers.integrations.moe import use_experts_implementation

from fp8_experts_oracle import dequantized_weights, quantized_weights

SIZES = {
    "vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 128, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None,
}  # fmt: skip

CONFIGS = {
    "Mixtral": lambda: MixtralConfig(**SIZES, intermediate_size=48, num_local_experts=4, num_experts_per_tok=2),
    "Qwen3-MoE": lambda: Qwen3MoeConfig(
        **SIZES, head_dim=16, intermediate_size=80, moe_intermediate_size=24, num_experts=8, num_experts_per_tok=4
    ),
    "DeepSeek-V3": lambda: DeepseekV3Config(
        **SIZES | {"num_key_value_heads": 4}, intermediate_size=80, moe_intermediate_size=24, n_routed_experts=8,
        num_experts_per_tok=3, n_group=2, topk_group=2, first_k_dense_replace=1, q_lora_rank=32, kv_lora_rank=32,
        qk_rope_head_dim=8, qk_nope_head_dim=16, v_head_dim=16,
    ),
    "gpt-oss": lambda: GptOssConfig(
        **SIZES, head_dim=16, intermediate_size=40, num_local_experts=6, num_experts_per_tok=3, sliding_window=32
    ),
}  # fmt: skip
# Of models whose experts have whole blocks of scales.
FP8_CONFIGS = {
    "Qwen3-MoE": lambda: Qwen3MoeConfig(
        **SIZES | {"hidden_size": 256}, head_dim=16, intermediate_size=80, moe_intermediate_size=128, num_experts=8,
        num_experts_per_tok=4,
    ),
    "DeepSeek-V3": lambda: DeepseekV3Config(
        **SIZES | {"num_key_value_heads": 4, "hidden_size": 144}, intermediate_size=80, moe_intermediate_size=192,
        n_routed_experts=8, num_experts_per_tok=3, n_group=2, topk_group=2, first_k_dense_replace=1, q_lora_rank=32,
        kv_lora_rank=32, qk_rope_head_dim=8, qk_nope_head_dim=16, v_head_dim=16,
    ),
}  # fmt: skip
MOE_LAYERS = {"Mixtral": 3, "Qwen3-MoE": 3, "DeepSeek-V3": 2, "gpt-oss": 3}


def randomize(module: torch.nn.Module, seed: int = 0) -> None:
    """Weights with which experts count: transformers' own initial ones leave them next to nothing to add."""
    numbers = torch.Generator().manual_seed(seed)
    for name, parameter in module.named_parameters():
        draw = torch.randn(parameter.shape, generator=numbers)
        if "bias" in name:
            parameter.data.copy_(draw / 2)
        elif parameter.ndim > 1:
            parameter.data.copy_(draw * min(parameter.shape[-2:]) ** -0.5)


def model(name: str, implementation: str, dtype: torch.dtype, device: str = "cpu") -> torch.nn.Module:
    """The same weights for every implementation and dtype: float32 takes the values of bfloat16."""
    made = AutoModelForCausalLM.from_config(
        CONFIGS[name](), dtype=torch.float32, attn_implementation="eager", experts_implementation=implementation
    )
    randomize(made)
    return made.to(torch.bfloat16).to(dtype).to(device).eval()


def fp8_model(name: str, implementation: str, device: str = "cpu", dequantized: bool = False) -> torch.nn.Module:
    """A model in bfloat16 with transformers' FP8Experts. dequantized: in float32 with the same weights, and FP8Experts
    that multiply them as they are: transformers' own path for weights of more than a byte.
    """
    from transformers import FineGrainedFP8Config
    from transformers.integrations.finegrained_fp8 import replace_with_fp8_linear

    made = AutoModelForCausalLM.from_config(
        FP8_CONFIGS[name](), dtype=torch.float32, attn_implementation="eager", experts_implementation=implementation
    )
    randomize(made)
    made = made.to(torch.bfloat16)
    weights = {where: module for where, module in made.named_modules() if where.endswith(".experts")}
    linear = [where for where, module in made.named_modules() if isinstance(module, torch.nn.Linear)]
    replace_with_fp8_linear(made, linear, FineGrainedFP8Config(weight_block_size=(128, 128)), pre_quantized=True)
    if dequantized:
        made = made.float()
    for where, old in weights.items():
        module = made.get_submodule(where)
        for one in ("gate_up_proj", "down_proj"):
            values, scales = quantized_weights(getattr(old, one).detach())
            if dequantized:
                values = dequantized_weights(values, scales).float()
            setattr(module, one, torch.nn.Parameter(values, requires_grad=False))
            setattr(module, f"{one}_scale_inv", torch.nn.Parameter(scales, requires_grad=False))
    return made.to(device).eval()


def prompt(tokens: int, sequences: int = 2, device: str = "cpu") -> torch.Tensor:
    drawn = torch.randint(2, SIZES["vocab_size"], (sequences, tokens), generator=torch.Generator().manual_seed(1))
    return drawn.to(device)


def error(computed: torch.Tensor, exact: torch.Tensor) -> float:
    """Relative, over all elements."""
    return float((computed.double() - exact.double()).norm() / exact.double().norm())


def middle_error(computed: torch.Tensor, exact: torch.Tensor) -> float:
    """Of logits: the median over tokens. Rounding makes a token choose other experts now and then, and all differs."""
    wrong = (computed.double() - exact.double()).norm(dim=-1) / exact.double().norm(dim=-1)
    return float(wrong.median())


class Experts(torch.nn.Module):
    """Experts as transformers' decorator wants them, of any layout. Its own forward is none."""

    def __init__(self, config, experts, hidden, intermediate, activation, gated, transposed, biased):
        super().__init__()
        self.num_experts, self.act_fn = experts, ACT2FN[activation]
        up, width = ("gate_up_proj", 2 * intermediate) if gated else ("up_proj", intermediate)
        shapes = {up: (experts, width, hidden), "down_proj": (experts, hidden, intermediate)}
        for name, (count, rows, columns) in shapes.items():
            shape = (count, columns, rows) if transposed else (count, rows, columns)
            setattr(self, name, torch.nn.Parameter(torch.empty(shape), requires_grad=False))
            if biased:
                bias = torch.nn.Parameter(torch.empty(count, rows), requires_grad=False)
                setattr(self, f"{name}_bias", bias)

    def forward(self, hidden_states, top_k_index, top_k_weights):
        raise NotImplementedError


class InterleavedExperts(Experts):
    def _apply_gate(self, gate_up):
        return self.act_fn(gate_up[..., ::2]) * gate_up[..., 1::2]


class Settings:
    """What of a config experts are asked for."""

    def __init__(self, implementation):
        self._experts_implementation = implementation


def experts(
    implementation,
    *,
    sizes=(5, 48, 32),
    activation="silu",
    gated=True,
    transposed=False,
    biased=False,
    interleaved=False,
):
    """(experts, hidden, intermediate) in `sizes`. With random bfloat16 weights; `.float()` has the same values."""
    base = InterleavedExperts if interleaved else Experts
    kind = use_experts_implementation(
        type(base.__name__, (base,), {}), is_concatenated=not interleaved, is_transposed=transposed, has_bias=biased,
        has_gate=gated,
    )  # fmt: skip
    module = kind(Settings(implementation), *sizes, activation, gated, transposed, biased)
    randomize(module)
    return module.to(torch.bfloat16)


def tokens(experts, count=40, hidden=48, k=3, device="cpu"):
    """(hidden_states, top_k_index, top_k_weights)."""
    numbers = torch.Generator().manual_seed(2)
    index = torch.rand(count, experts, generator=numbers).topk(k).indices
    weights = torch.rand(count, k, generator=numbers).softmax(-1)
    states = torch.randn(count, hidden, generator=numbers).to(torch.bfloat16)
    return states.to(device), index.to(device), weights.to(device)


def trained(name, implementation, dtype, steps, *, device="cpu", checkpointing=False, compiled=None):
    """(gradients of the first step by name, the losses) of a model that learns one batch by heart.

    compiled: arguments of torch.compile; as it is without.
    """
    made = model(name, implementation, dtype, device).train()
    if checkpointing:
        made.gradient_checkpointing_enable()
    run = made if compiled is None else torch.compile(made, **compiled)
    batch = prompt(16, device=device)
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
    gradients, losses = {}, []
    for _ in range(steps):
        if compiled is not None:
            torch.compiler.cudagraph_mark_step_begin()
        loss = run(batch, labels=batch, use_cache=False).loss
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        gradients = gradients or {key: one.grad.clone() for key, one in made.named_parameters() if one.grad is not None}
        optimizer.step()
        losses.append(loss.item())
    return gradients, torch.tensor(losses, dtype=torch.float64)


def assert_learns_alike(ours, usual, exact):
    """Each is what `trained` gave: ours, transformers' eager experts in the same dtype and in float32.

    Gradients of the first step are as exact as eager's. The losses leave those in float32 by at most twice as much as
    eager's do, or 0.02.
    """
    gradients, errors = exact[0], []
    for found in (ours[0], usual[0]):
        assert found.keys() == gradients.keys()
        errors.append(torch.tensor([error(found[key], right) for key, right in gradients.items() if right.any()]))
    assert errors[0].median() <= 1.25 * errors[1].median() and errors[0].max() <= 2 * errors[1].max(), errors
    losses, usual_losses, right = ours[1], usual[1], exact[1]
    assert right[-1] < 0.7 * right[0], ("nothing was learned", right)
    allowed = 2 * (usual_losses - right).abs().max() + 0.02
    assert (losses - right).abs().max() <= allowed, (losses, usual_losses, right)
