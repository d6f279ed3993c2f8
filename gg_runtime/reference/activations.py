"""The activations of the CPU path, in float32. tests/cpu/test_activations.py compares them with the kernels' own."""

import contextlib
import math
import sys
from collections.abc import Callable
from typing import Any

_OAI_SCALE, _OAI_LIMIT = 1.702, 7.0  # of gpt-oss
_SQRT_2_OVER_PI = math.sqrt(2 / math.pi)
GATED = ("swiglu", "geglu", "geglu_tanh", "swiglu_oai")
LIMITED = ("swiglu", "swiglu_oai")  # those with a swiglu_limit


def activated(sums: Any, activation: str, gate_up: str, swiglu_limit: float | None, arrays: Any) -> Any:
    """What `activation` makes of float32 sums [rows, N], with N / 2 columns where it is gated.

    `arrays` is the module of functions for their kind.
    """
    with _quiet():
        if activation not in GATED:
            return _OF_ONE[activation](sums, arrays)
        gate, up = halves(sums, gate_up)
        limit = _limit(activation, swiglu_limit)
        if limit is not None:
            gate, up = _limited(gate, up, limit, arrays)
        if activation == "swiglu_oai":
            return gate * _logistic(_OAI_SCALE * gate, arrays) * (up + 1)
        of_gate = {"swiglu": "silu", "geglu": "gelu", "geglu_tanh": "gelu_tanh"}[activation]
        return _OF_ONE[of_gate](gate, arrays) * up


def activated_with_slopes(
    sums: Any, activation: str | None, gate_up: str, swiglu_limit: float | None, arrays: Any
) -> tuple[Any, Any, Any]:
    """(value, its derivative by gate, by up) of float32 sums; no derivative by up where there is none.

    Past a limit a derivative is 0, as torch's clamp has it.
    """
    if activation is None:
        return sums, arrays.ones_like(sums), None
    with _quiet():
        if activation not in GATED:
            return _OF_ONE[activation](sums, arrays), _SLOPES[activation](sums, arrays), None
        gate, up = given = halves(sums, gate_up)
        limit = _limit(activation, swiglu_limit)
        if limit is not None:
            gate, up = _limited(gate, up, limit, arrays)
        if activation == "swiglu_oai":
            up = up + 1
            share = _logistic(_OAI_SCALE * gate, arrays)
            value, slope = gate * share, share + _OAI_SCALE * gate * share * (1 - share)
        else:
            of_gate = {"swiglu": "silu", "geglu": "gelu", "geglu_tanh": "gelu_tanh"}[activation]
            value, slope = _OF_ONE[of_gate](gate, arrays), _SLOPES[of_gate](gate, arrays)
        by_gate, by_up = slope * up, value
        if limit is not None:
            by_gate = arrays.where(given[0] <= limit, by_gate, 0.0)
            by_up = arrays.where((given[1] >= -limit) & (given[1] <= limit), by_up, 0.0)
        return value * up, by_gate, by_up


def halves(columns: Any, gate_up: str) -> tuple[Any, Any]:
    """(gate, up) of the columns of an array, in one of the three orders."""
    if gate_up == "interleaved":
        return columns[:, 0::2], columns[:, 1::2]
    first, second = columns[:, : columns.shape[1] // 2], columns[:, columns.shape[1] // 2 :]
    return (second, first) if gate_up == "up_first" else (first, second)


def joined(gate: Any, up: Any, gate_up: str, arrays: Any) -> Any:
    """Columns of which `halves` makes gate and up; `gate` alone where there is no up."""
    if up is None:
        return gate
    if gate_up == "interleaved":
        return arrays.stack((gate, up), -1).reshape(gate.shape[0], 2 * gate.shape[1])
    return arrays.concatenate((up, gate) if gate_up == "up_first" else (gate, up), 1)


def _limit(activation: str, swiglu_limit: float | None) -> float | None:
    """What gate and up are limited to."""
    return _OAI_LIMIT if activation == "swiglu_oai" and swiglu_limit is None else swiglu_limit


def _limited(gate: Any, up: Any, limit: float, arrays: Any) -> tuple[Any, Any]:
    """Gate at most `limit` and up in [-limit, limit]. NaN stays."""
    up = arrays.where(up > limit, limit, arrays.where(up < -limit, -limit, up))
    return arrays.where(gate > limit, limit, gate), up


def _logistic(x: Any, arrays: Any) -> Any:
    return 1 / (1 + arrays.exp(-x))


def _gelu(x: Any, arrays: Any) -> Any:
    return 0.5 * x * (1 + _erf(x * math.sqrt(0.5), arrays))


def _gelu_tanh(x: Any, arrays: Any) -> Any:
    return 0.5 * x * (1 + arrays.tanh(_SQRT_2_OVER_PI * (x + 0.044715 * x * x * x)))


def _relu(x: Any, arrays: Any) -> Any:
    return arrays.where(x < 0, 0.0, x)  # NaN stays


def _silu_slope(x: Any, arrays: Any) -> Any:
    share = _logistic(x, arrays)
    return share + x * share * (1 - share)


def _gelu_slope(x: Any, arrays: Any) -> Any:
    density = arrays.exp(-0.5 * x * x) * math.sqrt(0.5 / math.pi)
    return 0.5 * (1 + _erf(x * math.sqrt(0.5), arrays)) + x * density


def _gelu_tanh_slope(x: Any, arrays: Any) -> Any:
    tanh = arrays.tanh(_SQRT_2_OVER_PI * (x + 0.044715 * x * x * x))
    bend = 0.5 * x * (1 - tanh * tanh)
    rate = _SQRT_2_OVER_PI * (1 + 3 * 0.044715 * x * x)
    return 0.5 * (1 + tanh) + arrays.where(bend == 0, 0.0, bend * rate)


_SLOPES: dict[str, Callable[[Any, Any], Any]] = {
    "silu": _silu_slope,
    "gelu": _gelu_slope,
    "gelu_tanh": _gelu_tanh_slope,
    "relu": lambda x, arrays: arrays.where(x <= 0, 0.0, arrays.ones_like(x)),  # NaN has 1, as in torch
    "relu2": lambda x, arrays: 2 * _relu(x, arrays),
}

_OF_ONE: dict[str, Callable[[Any, Any], Any]] = {
    "silu": lambda x, arrays: x * _logistic(x, arrays),
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": _relu,
    "relu2": lambda x, arrays: _relu(x, arrays) ** 2,
}


def _erf(x: Any, arrays: Any) -> Any:
    """NumPy has none, and the array API names none."""
    if hasattr(arrays, "erf"):
        return arrays.erf(x)
    import numpy

    values = numpy.asarray(x)
    found = numpy.fromiter(map(math.erf, values.ravel().tolist()), numpy.float32, values.size)
    return arrays.asarray(numpy.reshape(found, values.shape))


def _quiet() -> contextlib.AbstractContextManager[Any]:
    """Overflow to infinity is what kernels do as well: NumPy need not warn of it."""
    numpy = sys.modules.get("numpy")
    return numpy.errstate(over="ignore", invalid="ignore") if numpy else contextlib.nullcontext()
