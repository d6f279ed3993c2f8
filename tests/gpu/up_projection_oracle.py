"""What grouped_mm gives with an index and an activation, in float64, and how far from it a result may be."""

import torch
from torch.nn.functional import gelu, silu

from ragged_oracle import group_rows

GATED = ("swiglu", "geglu", "geglu_tanh", "swiglu_oai")
UNGATED = ("silu", "gelu", "gelu_tanh", "relu", "relu2")
ORDERS = ("gate_first", "up_first", "interleaved")
CASES = [(activation, order) for activation in GATED for order in ORDERS] + [(one, "gate_first") for one in UNGATED]

_OF_ONE = {
    "silu": silu,
    "gelu": gelu,
    "gelu_tanh": lambda z: gelu(z, approximate="tanh"),
    "relu": torch.relu,
    "relu2": lambda z: torch.relu(z) ** 2,
}


def gathered(mat_a, index):
    """Rows of A in float64; zeros where the index names none."""
    if index is None:
        return mat_a.double()
    kept = (index >= 0) & (index < mat_a.shape[0])
    rows = torch.zeros(len(index), mat_a.shape[1], device=mat_a.device, dtype=torch.float64)
    rows[kept] = mat_a[index[kept].long()].double()
    return rows


def sums(mat_a, mat_b, offs, *, bias=None, index=None):
    """[rows, N] in float64; zeros behind the last group."""
    rows = gathered(mat_a, index)
    made = torch.zeros(rows.shape[0], mat_b.shape[2], device=mat_a.device, dtype=torch.float64)
    for group, part in group_rows(offs, rows.shape[0]):
        made[part] = rows[part] @ mat_b[group].double() + (0 if bias is None else bias[group].double())
    return made


def split(z, order):
    """(gate, up) of the columns of z."""
    if order == "interleaved":
        return z[:, 0::2], z[:, 1::2]
    first, second = z[:, : z.shape[1] // 2], z[:, z.shape[1] // 2 :]
    return (first, second) if order == "gate_first" else (second, first)


def activated(z, activation, order="gate_first", swiglu_limit=None):
    if activation is None:
        return z
    if activation in _OF_ONE:
        return _OF_ONE[activation](z)
    gate, up = split(z, order)
    limit = 7 if activation == "swiglu_oai" and swiglu_limit is None else swiglu_limit
    if limit is not None:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    if activation == "swiglu_oai":
        return gate * torch.sigmoid(1.702 * gate) * (up + 1)
    of_gate = {"swiglu": "silu", "geglu": "gelu", "geglu_tanh": "gelu_tanh"}[activation]
    return _OF_ONE[of_gate](gate) * up


def _magnitude(z, activation, order):
    """Of what is added and multiplied in float32: errors there go with it, not with the result."""
    if activation not in GATED:
        return z.abs() ** (2 if activation == "relu2" else 1)
    gate, up = split(z.abs(), order)
    return gate * (up + 1)


def assert_one_rounding(out, z, activation, order="gate_first", swiglu_limit=None) -> None:
    """For sums z that float32 and the output's dtype hold exactly: the activation in float32, rounded once."""
    wanted = activated(z, activation, order, swiglu_limit)
    assert out.shape == wanted.shape
    allowed = wanted.abs() * (torch.finfo(out.dtype).eps * 0.51 + 1e-5)
    allowed += 1e-6 * _magnitude(z, activation, order) + torch.finfo(out.dtype).smallest_normal
    _assert_within(out, wanted, allowed)


def assert_close(out, z, activation, order="gate_first", relative=1e-6, swiglu_limit=None) -> None:
    """For any sums, known within `relative` of 1 + their magnitude, which may be rounded before the activation."""
    wanted, eps = activated(z, activation, order, swiglu_limit), torch.finfo(out.dtype).eps
    step = z.abs() * eps * 0.51 + relative * (1 + z.abs())
    moved = [
        activated(z + sign * step * side, activation, order, swiglu_limit)
        for sign in (1, -1)
        for side in _sides(z, order)
    ]
    reach = torch.stack([(one - wanted).abs() for one in moved]).sum(0)
    _assert_within(out, wanted, wanted.abs() * eps + reach + 1e-6 * _magnitude(z, activation, order) + 1e-6)


def _sides(z, order):
    """Masks of the gates and of the ups among the columns."""
    gates = torch.zeros(1, z.shape[1], device=z.device, dtype=z.dtype)
    if z.shape[1] % 2 == 0:
        split(gates, order)[0].fill_(1)
    return gates, 1 - gates


def _assert_within(out, wanted, allowed) -> None:
    wrong = ~((out.double() - wanted).abs() <= allowed)
    if wrong.any():
        place = tuple(wrong.nonzero()[0].tolist())
        raise AssertionError(
            f"{int(wrong.sum())} of {wrong.numel()} elements differ, first at {list(place)}: {out[place].item()} "
            f"instead of {wanted[place].item()}, {allowed[place].item()} is allowed"
        )
