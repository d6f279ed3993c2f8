"""A layer of experts in float64, expert by expert, and how far from it the roundings of a right one may lead."""

import torch

ACTIVATIONS = {
    "swiglu": lambda g, u: torch.nn.functional.silu(g) * u,
    "geglu": lambda g, u: torch.nn.functional.gelu(g) * u,
    "geglu_tanh": lambda g, u: torch.nn.functional.gelu(g, approximate="tanh") * u,
    "swiglu_oai": lambda g, u: g * torch.sigmoid(1.702 * g) * (u + 1),
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda z: torch.nn.functional.gelu(z, approximate="tanh"),
    "relu": torch.relu,
    "relu2": lambda z: torch.relu(z) ** 2,
    None: lambda z: z,
}
GATED = ("swiglu", "geglu", "geglu_tanh", "swiglu_oai")
GATE_ORDERS = ("gate_first", "up_first", "interleaved")


def gate_and_up(z, order):
    half = z.shape[-1] // 2
    if order == "interleaved":
        return z[..., 0::2], z[..., 1::2]
    return (z[..., :half], z[..., half:]) if order == "gate_first" else (z[..., half:], z[..., :half])


def activate(z, activation, order, swiglu_limit=None):
    if activation in GATED:
        gate, up = gate_and_up(z, order)
        limit = 7 if activation == "swiglu_oai" and swiglu_limit is None else swiglu_limit
        if limit is not None:
            gate, up = gate.clamp(max=limit), up.clamp(min=-limit, max=limit)
        return ACTIVATIONS[activation](gate, up)
    return ACTIVATIONS[activation](z)


def layer(
    x, w1, w2, weights, ids, *, activation="swiglu", gate_up="gate_first", swiglu_limit=None, b1=None, b2=None,
    expert_map=None, apply_router_weight_on_input=False, add=None, scale=1.0, rounded_sums=False,
):  # fmt: skip
    """(out, bound), float64: the layer, and the error of one that rounds its rows between the steps to x's dtype.

    rounded_sums: the up projection's sums may be rounded before the activation as well.
    """
    unit = torch.finfo(x.dtype).eps / 2
    out = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    bound = torch.zeros_like(out)
    if expert_map is not None:
        known = (ids >= 0) & (ids < len(expert_map))
        mapped = expert_map.long()[ids.long().clamp(0, max(len(expert_map) - 1, 0))] if len(expert_map) else ids.long()
        ids = torch.where(known, mapped, torch.full_like(mapped, -1))
    for expert in range(len(w1)):
        token, slot = torch.nonzero(ids == expert, as_tuple=True)
        if len(token) == 0:
            continue
        factor, rows = weights[token, slot], x[token]
        if apply_router_weight_on_input:
            rows, factor = (rows.float() * factor.float()[:, None]).to(x.dtype), torch.ones_like(factor)
        row, up, down = rows.double(), w1[expert].double(), w2[expert].double()
        z = row @ up + (0 if b1 is None else b1[expert].double())
        inner = activate(z, activation, gate_up, swiglu_limit)
        y = inner @ down + (0 if b2 is None else b2[expert].double())
        sums_error = (row.abs() @ up.abs() + z.abs()) * 2.0**-21 + z.abs() * unit * rounded_sums
        inner_error = (
            error_after(z.abs(), sums_error, activation, gate_up, swiglu_limit) + inner.abs() * unit + tiny(x.dtype)
        )
        y_error = inner_error @ down.abs() + (inner.abs() @ down.abs() + y.abs()) * 2.0**-21
        y_error = y_error + (y.abs() + y_error) * unit + tiny(x.dtype)
        out.index_add_(0, token, y * factor.double()[:, None])
        bound.index_add_(0, token, (y_error + y.abs() * 2.0**-21) * factor.double().abs()[:, None])
    out, bound = out * scale, bound * abs(scale)
    if add is not None:
        out = out + add.double()
    return out, bound + (out.abs() + bound) * unit * 1.01 + tiny(x.dtype)


def error_after(z, error, activation, order, swiglu_limit=None):
    """What an activation makes of the error of |z|: slopes are at most 1.13, but for relu2's."""
    if activation in GATED:
        (gate, up), (gate_error, up_error) = gate_and_up(z, order), gate_and_up(error, order)
        if swiglu_limit is not None:
            gate, up = gate.clamp(max=max(swiglu_limit, 0.3)), up.clamp(max=swiglu_limit)  # silu is above -0.3
        return 1.2 * gate_error * (up + up_error + 1) + (gate + gate_error) * up_error
    return error * (2 * z + error) if activation == "relu2" else 1.2 * error


def tiny(dtype):
    """Half the step of the dtype's smallest numbers."""
    return torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps


def assert_layer(out, x, w1, w2, weights, ids, **options):
    want, bound = layer(x, w1, w2, weights, ids, **options)
    assert out.dtype == x.dtype and out.shape == x.shape
    wrong = ~((out.double() - want).abs() <= bound)
    assert not wrong.any(), (
        f"{int(wrong.sum())} of {wrong.numel()} elements, first at {torch.nonzero(wrong)[0].tolist()}: "
        f"{out[wrong][0].item()}, {want[wrong][0].item()} +- {bound[wrong][0].item():.3g} is right"
    )
