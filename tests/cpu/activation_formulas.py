"""The activations of grouped_mm in float64, written from their definitions: for tests alone, of NumPy arrays."""

import math

import numpy as np

GATED = ("swiglu", "geglu", "geglu_tanh", "swiglu_oai")
UNGATED = ("silu", "gelu", "gelu_tanh", "relu", "relu2")
ORDERS = ("gate_first", "up_first", "interleaved")
# Each activation with each order that means something for it.
CASES = [(activation, order) for activation in GATED for order in ORDERS] + [(one, "gate_first") for one in UNGATED]


def _sigmoid(x):
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))


def _normal_cdf(x):
    return np.vectorize(lambda value: 0.5 * math.erfc(-value / math.sqrt(2)), otypes=[np.float64])(x)


def _tanh_form(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def places(columns: int, order: str) -> tuple[list[int], list[int]]:
    """The columns of gate, and those of up."""
    half = columns // 2
    first, second = range(half), range(half, 2 * half)
    turns = range(0, 2 * half, 2), range(1, 2 * half, 2)
    gate, up = {"gate_first": (first, second), "up_first": (second, first), "interleaved": turns}[order]
    return list(gate), list(up)


def split(z: np.ndarray, order: str) -> tuple[np.ndarray, np.ndarray]:
    """(gate, up), column by column."""
    gate, up = places(z.shape[1], order)
    return z[:, gate], z[:, up]


def limit_of(activation: str | None, swiglu_limit: float | None = None) -> float:
    """What gate and up are limited to."""
    if swiglu_limit is None:
        return 7 if activation == "swiglu_oai" else np.inf
    return swiglu_limit


def formula(z: np.ndarray, activation: str, order: str = "gate_first", swiglu_limit: float | None = None) -> np.ndarray:
    z = z.astype(np.float64)
    ungated = {
        "silu": lambda x: x * _sigmoid(x),
        "gelu": lambda x: x * _normal_cdf(x),
        "gelu_tanh": _tanh_form,
        "relu": lambda x: np.maximum(x, 0),
        "relu2": lambda x: np.maximum(x, 0) ** 2,
    }
    if activation in ungated:
        return ungated[activation](z)
    gate, up = split(z, order)
    limit = limit_of(activation, swiglu_limit)
    gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
    if activation == "swiglu_oai":
        return gate * _sigmoid(1.702 * gate) * (up + 1)
    return ungated[{"swiglu": "silu", "geglu": "gelu", "geglu_tanh": "gelu_tanh"}[activation]](gate) * up


def slopes(
    z: np.ndarray, activation: str | None, order: str = "gate_first", swiglu_limit: float | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """(formula, its derivatives as z lies [rows, columns of z]), by differences; on a limit, those inside of it."""
    z = z.astype(np.float64)
    if activation is None:
        return z, np.ones_like(z)
    derivatives = np.empty_like(z)
    halves = split(z, order) if activation in GATED else (z,)
    for side, half in enumerate(halves):
        above, below = half + 1e-6, half - 1e-6
        limit = limit_of(activation, swiglu_limit)
        above, below = np.where(half == limit, half, above), np.where(half == -limit, half, below)
        both = (
            np.concatenate([moved if i == side else other for i, other in enumerate(halves)], 1)
            for moved in (above, below)
        )
        up, down = (formula(moved, activation, swiglu_limit=swiglu_limit) for moved in both)
        place = slice(None) if len(halves) == 1 else places(z.shape[1], order)[side]
        derivatives[:, place] = (up - down) / (above - below)
    return formula(z, activation, order, swiglu_limit), derivatives
