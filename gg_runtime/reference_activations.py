"""The activations of the CPU path, in float32. tests/cpu/test_activations.py compares them with the kernels' own."""

import contextlib
import math
import sys
from collections.abc import Callable
from typing import Any

_OAI_SCALE, _OAI_LIMIT = 1.702, 7.0  # of gpt-oss
_SQRT_2_OVER_PI = math.sqrt(2 / math.pi)
GATED = ("swiglu", "geglu", "geglu_tanh", "swiglu_oai")


def activated(sums: Any, activation: str, gate_up: str, arrays: Any) -> Any:
    """What `activation` makes of float32 sums [rows, N], with N / 2 columns where it is gated.

    `arrays` is the module of functions for their kind.
    """
    with _quiet():
        if activation not in GATED:
            return _OF_ONE[activation](sums, arrays)
        gate, up = halves(sums, gate_up)
        if activation == "swiglu_oai":
            gate, up = _at_most(gate, _OAI_LIMIT, arrays), _at_most(up, _OAI_LIMIT, arrays)
            up = arrays.where(up < -_OAI_LIMIT, -_OAI_LIMIT, up)
            return gate * _logistic(_OAI_SCALE * gate, arrays) * (up + 1)
        of_gate = {"swiglu": "silu", "geglu": "gelu", "geglu_tanh": "gelu_tanh"}[activation]
        return _OF_ONE[of_gate](gate, arrays) * up


def halves(columns: Any, gate_up: str) -> tuple[Any, Any]:
    """(gate, up) of the columns of an array, in one of the three orders."""
    if gate_up == "interleaved":
        return columns[:, 0::2], columns[:, 1::2]
    first, second = columns[:, : columns.shape[1] // 2], columns[:, columns.shape[1] // 2 :]
    return (first, second) if gate_up == "gate_first" else (second, first)


def _at_most(x: Any, limit: float, arrays: Any) -> Any:
    return arrays.where(x > limit, limit, x)


def _logistic(x: Any, arrays: Any) -> Any:
    return 1 / (1 + arrays.exp(-x))


def _gelu(x: Any, arrays: Any) -> Any:
    return 0.5 * x * (1 + _erf(x * math.sqrt(0.5), arrays))


def _gelu_tanh(x: Any, arrays: Any) -> Any:
    return 0.5 * x * (1 + arrays.tanh(_SQRT_2_OVER_PI * (x + 0.044715 * x * x * x)))


def _relu(x: Any, arrays: Any) -> Any:
    return arrays.where(x < 0, 0.0, x)  # NaN stays


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
