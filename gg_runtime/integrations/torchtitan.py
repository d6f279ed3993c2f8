# pyright: standard
"""torchtitan's `GroupedExperts` through `fused_experts`: rows that are sorted by expert, and how many each expert has.

    from gg_runtime.integrations import torchtitan as gg_torchtitan

    gg_torchtitan.replace(model)  # each GroupedExperts of the model, whose parameters stay as they are

or, for a model that is built anew, `gg_torchtitan.GroupedExperts` in place of torchtitan's: gate and up are one
parameter there, which spares a copy of both in each forward. Nothing of torchtitan is imported. Counts stay on the
device, rows need no padding, and `torch.compile(fullgraph=True)` takes it.
"""

import weakref
from typing import Any

import torch

from ..fused_experts import fused_experts

NAME = "GroupedExperts"
# Gate, up and down as torchtitan's classes call them, or gate and up in one. Later ones name the dimensions.
PARAMETERS = (("w1", "w3", "w2"), ("w1_EFD", "w3_EFD", "w2_EDF"), ("w13", "w2"))


def replace(model: Any) -> int:
    """Makes each module of `model` whose class is called GroupedExperts compute by `experts_forward`: experts that
    multiply silu(gate) by up, without biases.

    Before or after the model is sharded, and before it is compiled.

    Returns:
        how many there are.

    Raises:
        ValueError: there is none; one has other parameters than w1, w2 and w3, by either generation's names; or its
            class is one derived from GroupedExperts, with a forward of its own.
    """
    found = [(name, module) for name, module in model.named_modules() if _named_class(module)]
    if not found:
        raise ValueError(
            f"gg_runtime.integrations.torchtitan.replace: the model has no module of a class {NAME}; give "
            "experts_forward to your own class as its forward"
        )
    for name, module in found:
        names = {name for name, _ in module.named_parameters(recurse=False)}
        if names not in map(set, PARAMETERS):
            raise ValueError(
                f"gg_runtime.integrations.torchtitan.replace: {name or 'the model'} has the parameters "
                f"{', '.join(sorted(names)) or 'none'}; w1 and w3 [experts, hidden_dim, dim] and w2 [experts, dim, "
                "hidden_dim] are needed, without biases"
            )
        if type(module).forward is not _named_class(module).forward:
            raise ValueError(
                f"gg_runtime.integrations.torchtitan.replace: {name or 'the model'} is a {type(module).__name__}, "
                "which has a forward of its own; if it computes w2 (silu(w1 x) * (w3 x)), let it call experts_forward"
            )
    for _, module in found:
        module.forward = _Forward(module)
    return len(found)


def _named_class(module: Any) -> Any:
    """The class called GroupedExperts that a module is of; None where there is none. FSDP derives one from it."""
    return next((c for c in type(module).__mro__ if c.__name__ == NAME), None)


class _Forward:
    """`experts_forward` of a module, in place of its class's forward. A bound method of it could not be pickled: it
    would be looked up in the module by its name. The module has this object, and is freed without a collection."""

    def __init__(self, experts: Any):
        self.experts = weakref.ref(experts)

    def __reduce__(self) -> Any:
        return _Forward, (self.experts(),)

    def __call__(self, x: Any, num_tokens_per_expert: Any) -> Any:
        experts = self.experts()
        if experts is None:
            raise ReferenceError("the GroupedExperts of this forward are gone; keep the module as long as its forward")
        return experts_forward(experts, x, num_tokens_per_expert)


def experts_forward(experts: Any, x: Any, num_tokens_per_expert: Any) -> Any:
    """w2[e] (silu(w1[e] row) * (w3[e] row)) for each row of expert e: the forward of a GroupedExperts.

    Args:
        experts: the module, with the parameters w1, w2, w3 (or w1_EFD, w2_EDF, w3_EFD), or w13 [experts, 2, hidden_dim,
            dim] and w2. Of DTensors the local part is taken, as torchtitan does. Float32 parameters are cast to
            bfloat16, as torchtitan does.
        x: [rows, dim], the rows of the first expert first.
        num_tokens_per_expert: [experts], of any dtype. Rows behind their sum are padding, and zeros come out.

    Returns:
        [rows, dim] of x's dtype.

    Raises:
        ValueError: another number of counts than of experts, of which there are those of this process.
    """
    parameters = [_local(getattr(experts, name)) for name in _names(experts)]
    dtype = parameters[0].dtype if parameters[0].dtype in (torch.float16, torch.bfloat16) else torch.bfloat16
    *halves, down = (parameter.to(dtype) for parameter in parameters)
    up = halves[0].flatten(1, 2) if len(halves) == 1 else torch.cat(halves, 1)
    if list(num_tokens_per_expert.shape) != [down.shape[0]]:
        raise ValueError(
            f"gg_runtime.integrations.torchtitan: num_tokens_per_expert has shape {list(num_tokens_per_expert.shape)}, "
            f"and this module has {down.shape[0]} experts here; pass one count for each of them"
        )
    ends = num_tokens_per_expert.cumsum(0, dtype=torch.int32)
    rows = torch.arange(x.shape[0], dtype=torch.int32, device=x.device)
    of_rows = torch.searchsorted(ends, rows, right=True, out_int32=True)[:, None]  # padding: of no expert
    ones = torch.ones(of_rows.shape, dtype=torch.float32, device=x.device)
    return fused_experts(x.to(dtype).contiguous(), up.mT, down.mT, ones, of_rows).to(x.dtype)


def _names(experts: Any) -> tuple[str, ...]:
    """Of the module's parameters. A module that has w13 has w1 too, as a view."""
    return next(names for names in reversed(PARAMETERS) if hasattr(experts, names[0]))


def _local(parameter: Any) -> Any:
    """Of a DTensor what this process has."""
    return parameter.to_local() if hasattr(parameter, "to_local") else parameter


class GroupedExperts(torch.nn.Module):
    """Arguments, forward and state dict of torchtitan's, with gate and up in one parameter.

    Parameters, of torch's default dtype, not initialized until `init_weights`: w13 [num_experts, 2, hidden_dim, dim],
    gate (torchtitan's w1) and up (w3), and w2 [num_experts, dim, hidden_dim]. Its state dict has w1, w2 and w3 as
    torchtitan's has, and takes these and w13.
    """

    def __init__(self, dim: int, hidden_dim: int, num_experts: int, use_grouped_mm: bool = True):
        """
        Args:
            dim: elements of a token.
            hidden_dim: of an expert.
            num_experts: of all processes; where the parameters are sharded, each has its own.
            use_grouped_mm: is not read.
        """
        super().__init__()
        self.num_experts, self.use_grouped_mm = num_experts, use_grouped_mm
        self.w13 = torch.nn.Parameter(torch.empty(num_experts, 2, hidden_dim, dim))
        self.w2 = torch.nn.Parameter(torch.empty(num_experts, dim, hidden_dim))
        self.register_state_dict_post_hook(_apart)
        self.register_load_state_dict_pre_hook(_together)

    @property
    def w1(self) -> Any:
        """A view of w13: torch.distributed.checkpoint looks up each key of the state dict as an attribute."""
        return self.w13[:, 0]

    @property
    def w3(self) -> Any:
        """As w1."""
        return self.w13[:, 1]

    def init_weights(self, init_std: float) -> None:
        """As torchtitan's: truncated normal, of standard deviation 0.02 for w1 and `init_std` for w2 and w3."""
        for parameter, std in ((self.w1, 0.02), (self.w3, init_std), (self.w2, init_std)):
            torch.nn.init.trunc_normal_(parameter, mean=0.0, std=std)

    def forward(self, x: Any, num_tokens_per_expert: Any) -> Any:
        """`experts_forward` of this module."""
        return experts_forward(self, x, num_tokens_per_expert)


def _apart(module: Any, state: Any, prefix: str, _: Any) -> None:
    """The state dict has w1 and w3, as checkpoints of torchtitan have them."""
    both = state.pop(prefix + "w13", None)
    if both is None:  # a parametrization has it under another name
        return
    state[prefix + "w1"], state[prefix + "w3"] = both[:, 0], both[:, 1]


def _together(module: Any, state: Any, prefix: str, *others: Any) -> None:
    """Where parameters are DTensors, torch.distributed.checkpoint leaves w1 and w3 of a full state dict as they are."""
    halves = [prefix + name for name in ("w1", "w3")]
    _, _, missing, _, errors = others
    lacking = [name for name in halves if name not in state]
    if len(lacking) == 1:  # the other one stays: torch tells that it has no use for it
        missing += lacking
    if lacking:
        return
    w1, w3 = (state.pop(name) for name in halves)
    if w1.shape != w3.shape:
        errors.append(f"size mismatch: {halves[0]} has shape {list(w1.shape)} and {halves[1]} {list(w3.shape)}.")
        return
    state[prefix + "w13"] = _as_parameter(torch.stack((w1, w3), 1), module.w13)


def _as_parameter(whole: Any, parameter: Any) -> Any:
    """A whole tensor as a DTensor where the parameter is one."""
    if not hasattr(parameter, "device_mesh") or hasattr(whole, "device_mesh"):
        return whole
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(whole.to(parameter.device), parameter.device_mesh, parameter.placements)
