"""What an activation makes of float32 sums, on the CPU: what the kernels compute, in the framework of the sums."""

import math
import sys
from collections.abc import Callable
from typing import Any

_LIMIT, _ALPHA = 7.0, 1.702  # of swiglu_oai, as gpt-oss has them


def activated(sums: Any, activation: str | None, gate_up: str, arrays: Any) -> Any:
    """`activation` of float32 sums [rows, N], unrounded: [rows, N], or [rows, N / 2] where it is gated.

    `arrays` is the module of the functions for arrays of this kind.
    """
    if activation is None:
        return sums
    if activation not in _GATED:
        return _UNGATED[activation](sums, arrays)
    half = sums.shape[1] // 2
    if gate_up == "interleaved":
        gate, up = sums[:, 0::2], sums[:, 1::2]
    else:
        gate, up = sums[:, :half], sums[:, half:]
    if gate_up == "up_first":
        gate, up = up, gate
    return _GATED[activation](gate, up, arrays)


def _sigmoid(z: Any, arrays: Any) -> Any:
    """1 / (1 + exp(-z)), of an exponent that cannot overflow."""
    power = arrays.exp(-abs(z))
    return arrays.where(z >= 0, 1 / (1 + power), power / (1 + power))


def _silu(z: Any, arrays: Any) -> Any:
    return z * _sigmoid(z, arrays)


def _erf(z: Any, arrays: Any) -> Any:
    if arrays is sys.modules.get("torch"):
        return arrays.erf(z)
    import numpy  # which has no erf itself

    values = [math.erf(value) for value in numpy.asarray(z).ravel().tolist()]
    return arrays.asarray(numpy.array(values, "float32").reshape(z.shape))


def _gelu(z: Any, arrays: Any) -> Any:
    return 0.5 * z * (1 + _erf(z * math.sqrt(0.5), arrays))


def _gelu_tanh(z: Any, arrays: Any) -> Any:
    return 0.5 * z * (1 + arrays.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z * z * z)))


def _relu(z: Any, arrays: Any) -> Any:
    return z.clip(0, None)


def _swiglu_oai(gate: Any, up: Any, arrays: Any) -> Any:
    gate, up = gate.clip(None, _LIMIT), up.clip(-_LIMIT, _LIMIT)
    return gate * _sigmoid(_ALPHA * gate, arrays) * (up + 1)


_GATED: dict[str, Callable[[Any, Any, Any], Any]] = {
    "swiglu": lambda gate, up, arrays: _silu(gate, arrays) * up,
    "geglu": lambda gate, up, arrays: _gelu(gate, arrays) * up,
    "geglu_tanh": lambda gate, up, arrays: _gelu_tanh(gate, arrays) * up,
    "swiglu_oai": _swiglu_oai,
}
_UNGATED: dict[str, Callable[[Any, Any], Any]] = {
    "silu": _silu,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": _relu,
    "relu2": lambda z, arrays: _relu(z, arrays) ** 2,
}
