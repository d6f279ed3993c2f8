"""Experts of Hugging Face transformers' models through `fused_experts`.

    from gg_runtime.integrations import transformers as gg_transformers

    gg_transformers.register()
    model = AutoModelForCausalLM.from_pretrained(..., dtype="bfloat16", experts_implementation="gg_runtime")

transformers 5.7 and later take the name there, and in `model.set_experts_implementation("gg_runtime")`. 5.0 to 5.6
accept their own names alone when a model is loaded: load it with "eager", then set
`model.config._experts_implementation = "gg_runtime"`. Models train as they are: gradients of weights, biases, states
and router weights are recorded. `torch.compile` takes them into its graphs, with `fullgraph=True` too.
"""

import ctypes
from typing import Any
from weakref import WeakKeyDictionary

from ..fused_experts import fused_experts
from ..reference_activations import GATED, activated

NAME = "gg_runtime"

UNGATED = ("silu", "gelu", "gelu_tanh", "relu", "relu2")
ORDERS = ("gate_first", "interleaved", "up_first")

# Gates and ups that tell activations apart, and clamps at any limit below 10000. Tried in float64.
_PROBES = (
    -1e4, -300.0, -60.0, -9.0, -7.5, -5.0, -2.5, -1.0, -0.25, 0.0, 0.5, 1.5, 3.0, 6.5, 7.5, 9.5, 40.0, 150.0, 1e4,
)  # fmt: skip
_TOLERANCE = 1e-5  # relative and absolute; gelu and its tanh form differ by 4e-4

# Module -> what its activation depends on, and the names found for that.
_found: "WeakKeyDictionary[Any, tuple[Any, tuple[str, str]]]" = WeakKeyDictionary()


def register() -> None:
    """Makes `experts_implementation="gg_runtime"` known to transformers. Calling it again changes nothing.

    Raises:
        ImportError: transformers 5.0 or later is not there.
    """
    try:
        from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
    except ImportError as error:
        raise ImportError(
            f"gg_runtime.integrations.transformers: transformers 5.0 or later, with torch, is needed: {error}"
        ) from error
    functions: Any = ALL_EXPERTS_FUNCTIONS
    functions.register(NAME, experts_forward)


def experts_forward(experts: Any, hidden_states: Any, top_k_index: Any, top_k_weights: Any) -> Any:
    """The forward of an experts module, as `transformers.integrations.moe` calls it.

    Args:
        experts: the module. Its weights are read where they lie, transposed or not, with biases or without.
        hidden_states: [tokens, H]; cast to the weights' dtype if autocast left another.
        top_k_index: [tokens, k]. Ids that are not of this module's experts, such as the sentinels of expert
            parallelism, are dropped.
        top_k_weights: [tokens, k].

    Returns:
        [tokens, H] of hidden_states' dtype.

    Raises:
        TypeError: weights that are neither float16 nor bfloat16.
        ValueError: an activation that `fused_experts` does not have.
    """
    gated = getattr(experts, "has_gate", True)  # 5.0 has gated experts alone
    up_name = "gate_up_proj" if gated else "up_proj"
    up, down = getattr(experts, up_name), experts.down_proj
    b1, b2 = (getattr(experts, f"{up_name}_bias"), experts.down_proj_bias) if experts.has_bias else (None, None)
    _check_dtype(experts, up)
    # Factors and limits of its activation are among them. What torch.compile made does not hold once one changes.
    numbers = tuple([getattr(experts, name) for name in _names_of_numbers(id(experts))])
    activation, order = _activation(id(experts), gated, numbers)
    if not experts.is_transposed:
        up, down = up.mT, down.mT
    sums = fused_experts(
        hidden_states.to(up.dtype), up, down, top_k_weights.contiguous(), top_k_index.contiguous(),
        activation=activation, gate_up=order, b1=b1, b2=b2,
    )  # fmt: skip
    return sums.to(hidden_states.dtype)


def _check_dtype(experts: Any, weights: Any) -> None:
    import torch

    if weights.dtype not in (torch.float16, torch.bfloat16):
        raise TypeError(
            f"{_of(experts)}: the weights are {weights.dtype}, and gg_runtime's experts are float16 or bfloat16; "
            'load the model with dtype=torch.bfloat16, or use model.set_experts_implementation("eager")'
        )


def _of(experts: Any) -> str:
    return f'experts_implementation="{NAME}", {type(experts).__name__}'


def _object(identity: int) -> Any:
    """The object that has this id, and lives. Where torch.compile asks for a constant it passes numbers, no modules."""
    return ctypes.cast(identity, ctypes.py_object).value


def _names_of_numbers(identity: int) -> tuple[str, ...]:
    return tuple(name for name, value in _object(identity).__dict__.items() if type(value) in (float, int))


def _activation(identity: int, gated: bool, numbers: tuple[Any, ...]) -> tuple[str, str]:
    """(activation, gate_up) of a module, as `fused_experts` names them.

    Modules have their own classes of activations, and gates with factors and limits of their own. So what a module
    computes is compared with what `fused_experts` computes, once for each value of its factors and limits.
    """
    experts = _object(identity)
    depends_on = experts.__dict__["_modules"].get("act_fn"), numbers
    known = _found.get(experts)
    if known is None or known[0] != depends_on:
        known = _found[experts] = depends_on, _recognized(experts, gated)
    return known[1]


# torch.compile calls them when it traces and takes the answers for constants: the mark of torch's
# assume_constant_result.
for _function in (_names_of_numbers, _activation):
    _function.__dict__["_dynamo_marked_constant"] = True


def _recognized(experts: Any, gated: bool) -> tuple[str, str]:
    import torch

    with torch.no_grad():
        values = torch.tensor(_PROBES, dtype=torch.float64, device="cpu")
        drawn = torch.Generator(device="cpu").manual_seed(0)
        places = torch.randint(len(_PROBES), (64, 128), generator=drawn, device="cpu")
        probe = values[places]  # 4096 pairs, whichever columns are taken for gate and up
        try:
            computed = (experts._apply_gate if gated else experts.act_fn)(probe.clone()).double()
        except Exception as error:
            raise _unknown(experts, f"its activation fails on the CPU, {type(error).__name__}: {error}") from error
        for activation in GATED if gated else UNGATED:
            for order in ORDERS if gated else ORDERS[:1]:
                expected = activated(probe, activation, order, torch)
                if computed.shape == expected.shape and torch.allclose(computed, expected, _TOLERANCE, _TOLERANCE):
                    return activation, order
    raise _unknown(experts, "its activation is none of these")


def _unknown(experts: Any, why: str) -> ValueError:
    own: dict[str, Any] = experts.__dict__
    values = {name: value for name, value in own.items() if type(value) is float}
    about = f"act_fn {type(getattr(experts, 'act_fn', None)).__name__}, {values}"
    return ValueError(
        f"{_of(experts)} ({about}): {why}; gg_runtime has {', '.join(GATED)} (alpha 1.702, limit 7) for experts with a "
        f"gate and {', '.join(UNGATED)} for others. Use "
        'model.set_experts_implementation("grouped_mm") or "eager" for this model'
    )
