"""Experts of Hugging Face transformers' models through `fused_experts`.

    from gg_runtime.integrations import transformers as gg_transformers

    gg_transformers.register()
    model = AutoModelForCausalLM.from_pretrained(..., dtype="bfloat16", experts_implementation="gg_runtime")

transformers 5.7 and later take the name there, and in `model.set_experts_implementation("gg_runtime")`. 5.0 to 5.6
accept their own names alone when a model is loaded: load it with "eager", then set
`model.config._experts_implementation = "gg_runtime"`. Models train as they are: gradients of weights, biases, states
and router weights are recorded. `torch.compile` takes them into its graphs, with `fullgraph=True` too. Layers that are
compiled one by one share a graph from torch 2.13 on. Before, each has its own, and there may be no more layers than
`torch._dynamo.config.recompile_limit`, which is 8.

The name also serves the experts of FP8 checkpoints, `FP8Experts` of transformers' fine-grained FP8 integration, where
transformers has them: float8_e4m3fn weights with a scale for each 128x128, and activations that are quantized in each
call. They have no gradients.
"""

import ctypes
import functools
import gc
import itertools
import math
import re
import sys
import types
import weakref
from collections.abc import Iterator
from typing import Any

from ..fused_experts import fused_experts
from ..reference.activations import GATED, LIMITED, activated, halves

NAME = "gg_runtime"

UNGATED = ("silu", "gelu", "gelu_tanh", "relu", "relu2")
ORDERS = ("gate_first", "interleaved", "up_first")

# Gates and ups that tell activations apart, and clamps at any limit below 10000. Tried in float64.
_PROBES = (
    -1e4, -300.0, -60.0, -9.0, -7.5, -5.0, -2.5, -1.0, -0.25, 0.0, 0.5, 1.5, 3.0, 6.5, 7.5, 9.5, 40.0, 150.0, 1e4,
)  # fmt: skip
_TOLERANCE = 1e-5  # relative and absolute; gelu and its tanh form differ by 4e-4

# (activation, gate_up, swiglu_limit) of a module, as `fused_experts` takes them.
Known = tuple[str, str, float | None]

# Module -> what its activation depends on, and what was found for that.
_found: "weakref.WeakKeyDictionary[Any, tuple[Any, Known]]" = weakref.WeakKeyDictionary()


def register() -> None:
    """Makes `experts_implementation="gg_runtime"` known to transformers, for experts in 16 bits and in FP8. Calling it
    again changes nothing.

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
    from transformers.integrations import finegrained_fp8

    of_fp8: Any = getattr(finegrained_fp8, "ALL_FP8_EXPERTS_FUNCTIONS", None)  # the first releases have one forward
    if of_fp8 is not None:
        of_fp8.register(NAME, fp8_experts_forward)


def experts_forward(experts: Any, hidden_states: Any, top_k_index: Any, top_k_weights: Any) -> Any:
    """The forward of an experts module, as `transformers.integrations.moe` calls it.

    Args:
        experts: the module. Its weights are read where they lie, transposed or not, with biases or without.
        hidden_states: [tokens, H]; cast to the weights' dtype if autocast left another. Float32 weights, and biases,
            are cast to autocast's dtype in each call under it, and are refused elsewhere.
        top_k_index: [tokens, k]. Ids that are not of this module's experts, such as the sentinels of expert
            parallelism, are dropped.
        top_k_weights: [tokens, k].

    Returns:
        [tokens, H] of hidden_states' dtype.

    Raises:
        TypeError: weights that are neither float16 nor bfloat16, nor float32 under autocast.
        ValueError: an activation that `fused_experts` does not have.
    """
    gated = getattr(experts, "has_gate", True)  # 5.0 has gated experts alone
    up_name = "gate_up_proj" if gated else "up_proj"
    dtype = _dtype(experts, getattr(experts, up_name))
    up, down = getattr(experts, up_name).to(dtype), experts.down_proj.to(dtype)
    b1 = b2 = None
    if experts.has_bias:
        b1, b2 = getattr(experts, f"{up_name}_bias").to(dtype), experts.down_proj_bias.to(dtype)
    activation, order, limit = _activation(experts, gated)
    if not experts.is_transposed:
        up, down = up.mT, down.mT
    sums = fused_experts(
        hidden_states.to(dtype).contiguous(), up, down, top_k_weights.contiguous(), top_k_index.contiguous(),
        activation=activation, gate_up=order, swiglu_limit=limit, b1=b1, b2=b2,
    )  # fmt: skip
    return sums.to(hidden_states.dtype)


def fp8_experts_forward(experts: Any, hidden_states: Any, top_k_index: Any, top_k_weights: Any) -> Any:
    """The forward of an `FP8Experts` module, as `transformers.integrations.finegrained_fp8` calls it.

    As `experts_forward`, with float8_e4m3fn weights [E, N, K] and their scales [E, N / 128, K / 128], read where they
    lie. Scales of float8_e8m0fnu, which are powers of two, become float32 in each call. Weights that were dequantized
    when the model was loaded are those of `experts_forward`.

    Raises:
        ValueError: other blocks than 128x128, scales of activations from a checkpoint, or an activation that
            `fused_experts` does not have.
        TypeError: weights of another dtype, such as those of 4 bits.
        RuntimeError: hidden_states or top_k_weights require grad.
    """
    import torch

    gated = getattr(experts, "has_gate", True)
    up_name = "gate_up_proj" if gated else "up_proj"
    up, down = getattr(experts, up_name), experts.down_proj
    if up.dtype in (torch.float16, torch.bfloat16):
        return experts_forward(experts, hidden_states, top_k_index, top_k_weights)
    _check_fp8(experts, up)
    activation, order, limit = _activation(experts, gated)
    w1_scale, w2_scale = getattr(experts, f"{up_name}_scale_inv"), experts.down_proj_scale_inv
    states = hidden_states if hidden_states.dtype is torch.float16 else hidden_states.to(torch.bfloat16)
    sums = fused_experts(
        states.contiguous(), up.detach().mT, down.detach().mT, top_k_weights.contiguous(), top_k_index.contiguous(),
        activation=activation, gate_up=order, swiglu_limit=limit, w1_scale=w1_scale.detach().float(),
        w2_scale=w2_scale.detach().float(),
    )  # fmt: skip
    return sums.to(hidden_states.dtype)


def _check_fp8(experts: Any, weights: Any) -> None:
    import torch

    if weights.dtype is not torch.float8_e4m3fn:
        raise TypeError(
            f"{_of(experts)}: the weights are {weights.dtype}, and gg_runtime's FP8 experts are torch.float8_e4m3fn; "
            'use model.set_experts_implementation("eager")'
        )
    if experts.block_size is None or tuple(experts.block_size) != (128, 128):
        raise ValueError(
            f"{_of(experts)}: the blocks of the weights are {experts.block_size}, and gg_runtime has scales of blocks "
            'of (128, 128); use model.set_experts_implementation("eager")'
        )
    if experts.activation_scheme != "dynamic":
        raise ValueError(
            f'{_of(experts)}: activation_scheme is "{experts.activation_scheme}", and gg_runtime makes the scales of '
            'activations in each call, as "dynamic" does; use model.set_experts_implementation("eager")'
        )


def _dtype(experts: Any, weights: Any) -> Any:
    """Which dtype the products of these weights have."""
    import torch

    dtype, device = weights.dtype, weights.device.type
    if dtype is torch.float32 and torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
    if dtype not in (torch.float16, torch.bfloat16):
        raise TypeError(
            f"{_of(experts)}: the weights are {weights.dtype}, and gg_runtime's experts are float16 or bfloat16; load "
            "the model with dtype=torch.bfloat16, call it under torch.autocast, or use "
            'model.set_experts_implementation("eager")'
        )
    return dtype


def _of(experts: Any) -> str:
    return f'experts_implementation="{NAME}", {type(experts).__name__}'


def _facts(module: Any) -> tuple[tuple[str, Any], ...]:
    """The numbers and words that a module has as attributes, what tells its activation from others among them. Whether
    it trains does not.
    """
    facts: list[tuple[str, Any]] = []
    for name, value in module.__dict__.items():
        if type(value) in (float, int, bool, str) and name != "training":
            facts.append((name, _digits(value)))
    return tuple(facts)


def _kinds(act_fn: Any) -> tuple[tuple[Any, Any], ...] | None:
    """The classes and facts of an activation and of what it is made of. None of a function."""
    import torch

    if not isinstance(act_fn, torch.nn.Module):
        return None
    return tuple([(type(module), _facts(module)) for module in act_fn.modules()])


def _digits(number: Any) -> Any:
    """torch.compile takes a float for a variable once it has changed, its digits never."""
    return number.hex() if type(number) is float else number


def _activation(experts: Any, gated: bool) -> Known:
    """What the activation of a module is to `fused_experts`.

    Modules have their own classes of activations, and gates with factors and limits of their own. So what a module
    computes is compared with what `fused_experts` computes, once for each value of its factors and limits.
    """
    import torch

    if not torch.compiler.is_compiling():
        return _known(experts, gated)
    act_fn = getattr(experts, "act_fn", None)
    if not _guards_hold_facts() or isinstance(act_fn, functools.partial):  # which tracing makes anew
        numbers = tuple([_digits(getattr(experts, name)) for name in _names_of_numbers(id(experts))])
        return _activation_of_one(id(experts), gated, numbers)
    kinds = _kinds(act_fn)
    return _activation_of_kind(gated, type(experts), _facts(experts), act_fn if kinds is None else None, kinds)


def _known(experts: Any, gated: bool) -> Known:
    act_fn = getattr(experts, "act_fn", None)
    depends_on = _reference(act_fn), _facts(experts), _kinds(act_fn)
    known = _found.get(experts)
    if known is None or known[0] != depends_on:
        known = _found[experts] = depends_on, _recognized(experts, gated)
    return known[1]


def _reference(act_fn: Any) -> Any:
    """What stands for an activation without keeping it, and the experts that it may refer to, alive."""
    if isinstance(act_fn, types.MethodType):
        return weakref.WeakMethod(act_fn)
    try:
        return None if act_fn is None else weakref.ref(act_fn)
    except TypeError:  # of a class with __slots__
        return act_fn


# What follows is called by torch.compile when it traces, which takes the answers for constants.


def _guards_hold_facts() -> bool:
    """Whether torch's guards may be asked for the numbers of a module as `_facts` reads them: tried with torch 2.13,
    failed with 2.11. Before, a graph is for the one module, and torch's recompile_limit counts its layers.
    """
    import torch

    major, minor = re.findall(r"\d+", torch.__version__)[:2]
    return (int(major), int(minor)) >= (2, 13)


def _object(identity: int) -> Any:
    """The object that has this id, and lives. Where torch.compile asks for a constant it passes numbers, no modules."""
    return ctypes.cast(identity, ctypes.py_object).value


def _names_of_numbers(identity: int) -> tuple[str, ...]:
    return tuple(name for name, value in _object(identity).__dict__.items() if type(value) in (float, int))


def _activation_of_one(identity: int, gated: bool, numbers: Any) -> Known:
    """`numbers` are guarded by being arguments: the answer does not hold once one changes."""
    return _known(_object(identity), gated)


def _activation_of_kind(gated: bool, kind: Any, facts: Any, function: Any, kinds: Any) -> Known:
    """That of any module with these classes and numbers, which are what torch.compile's guards hold: its activation is
    a function, or made of `kinds`. Asked for the one module by its identity, no two layers would share a graph.
    """
    for one in itertools.chain(gc.get_objects(), _modules_of_callers()):
        if type(one) is not kind or _facts(one) != facts:
            continue
        act_fn = getattr(one, "act_fn", None)
        if _kinds(act_fn) == kinds and (kinds is not None or act_fn is function):
            return _recognized(one, gated)
    raise RuntimeError(f"no {kind.__name__} with {dict(facts)} is alive while torch.compile traces it")


def _modules_of_callers() -> Iterator[Any]:
    """Those that frames of this thread have, the compiled one's among them: after `gc.freeze` no others are found."""
    import torch

    frame: Any = sys._getframe()  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        values: list[Any] = list(frame.f_locals.values())
        dicts: list[dict[Any, Any]] = [value for value in values if isinstance(value, dict)]
        for held in itertools.chain(values, *(each.values() for each in dicts)):
            if isinstance(held, torch.nn.Module):
                yield from held.modules()
        frame = frame.f_back


for _function in (_guards_hold_facts, _names_of_numbers, _activation_of_one, _activation_of_kind):
    _function.__dict__["_dynamo_marked_constant"] = True  # the mark of torch's assume_constant_result


def _recognized(experts: Any, gated: bool) -> Known:
    import torch
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import _disable_current_modes  # pyright: ignore[reportPrivateUsage]
    from torch.utils._pytree import tree_leaves

    of_module = {id(tensor) for tensor in itertools.chain(experts.parameters(), experts.buffers())}
    read: set[int] = set()

    class Reads(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            read.update(of_module.intersection(map(id, tree_leaves((args, kwargs)))))
            return func(*args, **(kwargs or {}))

    with torch.no_grad(), _disable_current_modes():  # torch.export traces with fake tensors, which have no values
        values = torch.tensor(_PROBES, dtype=torch.float64, device="cpu")
        drawn = torch.Generator(device="cpu").manual_seed(0)
        places = torch.randint(len(_PROBES), (64, 128), generator=drawn, device="cpu")
        probe = values[places]  # 4096 pairs, whichever columns are taken for gate and up
        try:
            with Reads():
                computed = (experts._apply_gate if gated else experts.act_fn)(probe.clone()).double()
        except Exception as error:
            raise _unknown(experts, f"its activation fails on the CPU, {type(error).__name__}: {error}") from error
        if read:
            raise _unknown(experts, "its activation depends on tensors of the module, whose values may change")
        for activation in GATED if gated else UNGATED:
            for order in ORDERS if gated else ORDERS[:1]:
                limit = _limit(probe, computed, activation, order)
                expected = activated(probe, activation, order, limit, torch)
                if computed.shape == expected.shape and torch.allclose(computed, expected, _TOLERANCE, _TOLERANCE):
                    return activation, order, limit
    raise _unknown(experts, "its activation is none of these")


def _limit(probe: Any, computed: Any, activation: str, order: str) -> float | None:
    """Where a module limits gate and up, if it has this activation: what it gives is linear in up, so the largest up
    tells it beside a gate that is negative, which no limit changes."""
    import torch

    if activation not in LIMITED or computed.shape != (probe.shape[0], probe.shape[1] // 2):
        return None
    gate, up = halves(probe, order)
    places = ((gate == -1.0) & (up == max(_PROBES))).nonzero()
    value = computed[tuple(places[0])]
    ends = torch.tensor([[-1.0, 0.0, -1.0, 1.0]], dtype=torch.float64, device="cpu")
    of_0, of_1 = activated(ends, activation, "interleaved", math.inf, torch)[0]
    limit = float((value - of_0) / (of_1 - of_0))
    if not 0 < limit < max(_PROBES) * (1 - _TOLERANCE):
        return math.inf if activation == "swiglu_oai" else None
    return round(limit, 9)  # without the last digits, which the division has changed


def _unknown(experts: Any, why: str) -> ValueError:
    own: dict[str, Any] = experts.__dict__
    values = {name: value for name, value in own.items() if type(value) is float}
    about = f"act_fn {type(getattr(experts, 'act_fn', None)).__name__}, {values}"
    return ValueError(
        f"{_of(experts)} ({about}): {why}; gg_runtime has {', '.join(GATED)} (alpha 1.702) for experts with a gate, "
        f"{' and '.join(LIMITED)} with any limit, and {', '.join(UNGATED)} for others. Use "
        'model.set_experts_implementation("grouped_mm") or "eager" for this model'
    )
