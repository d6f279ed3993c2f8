# pyright: standard
"""Calls that torch cannot take part in, each with what to write instead."""

from collections.abc import Sequence
from typing import Any

import torch

_SIXTEEN_BITS = frozenset((torch.float16, torch.bfloat16))
_NEUTRAL = {"alpha": 1, "beta": 0}  # as if not given

# What has no gradient, and how to do without.
_INSTEAD = {
    "out": "leave it out, and take the output that is returned",
    "scale_a": "multiply in float16 or bfloat16, without scales",
    "scale_b": "multiply in float16 or bfloat16, without scales",
    "w1_scale": "pass w1 and w2 in float16 or bfloat16, each times its scales",
    "w2_scale": "pass w1 and w2 in float16 or bfloat16, each times its scales",
    "a_index": "pass the gathered matrix, mat_a[a_index] for rows or mat_a[:, a_index] for columns",
    "activation": "multiply without it, and apply the activation with torch's functions",
    "preactivation": "multiply without an activation: the output is what preactivation would hold",
    "b_index": "pass the gathered matrix, mat_b[b_index]",
    "counts": "multiply without them, and set rows past them to zero with torch.where, in mat_a and in the output",
    "alpha": "multiply the output with torch",
    "beta": "add to the output with torch",
}
_OTHERWISE = "If no gradient is wanted, call it under torch.no_grad(), or pass {name}.detach()"


def check(function: str, tensors: dict[str, Any], **arguments: Any) -> None:
    """Raises RuntimeError for an argument that is given and has no gradient, with one of the tensors, or itself, that
    requires grad.
    """
    for argument, value in arguments.items():
        if value is None or (isinstance(value, (int, float)) and value == _NEUTRAL.get(argument)):
            continue
        each = {f"{argument}[{i}]": one for i, one in enumerate(value)} if isinstance(value, (list, tuple)) else {}
        name = requires_grad({**tensors, **(each or {argument: value})})
        if name is not None:
            raise RuntimeError(
                f"{function}: {name} requires grad, and {argument} has no gradients: {_INSTEAD[argument]}. "
                + _OTHERWISE.format(name=name)
            )


def check_no_workspace(function: str, tensors: dict[str, Any], **arguments: Any) -> None:
    """Raises RuntimeError for memory, or a bound of it, that a call of which gradients are recorded would not use."""
    given = [argument for argument, value in arguments.items() if value is not None]
    name = requires_grad(tensors) if given else None
    if name is not None:
        raise RuntimeError(
            f"{function}: {name} requires grad, and {given[0]} is not for a call that keeps what its gradients need: "
            "leave it out. " + _OTHERWISE.format(name=name)
        )


def check_dtypes(function: str, tensors: dict[str, Any], inputs: Any, output: Any) -> None:
    """Raises RuntimeError for dtypes whose products have no gradients."""
    if inputs in _SIXTEEN_BITS and output is inputs:
        return
    name = requires_grad(tensors)
    raise RuntimeError(
        f"{function}: {name} requires grad, and a product of {words(inputs)} that gives {words(output)} has no "
        "gradients: float16 and bfloat16 have them, with outputs of the same dtype; convert before or after. "
        + _OTHERWISE.format(name=name)
    )


def of_forward_only(function: str, tensors: dict[str, Any]) -> RuntimeError:
    name = requires_grad(tensors)
    return RuntimeError(
        f"{function}: {name} requires grad, and gradients are not recorded: they would be lost; call it under "
        f"torch.no_grad(), or pass {name}.detach()"
    )


def of_second_derivatives(function: str) -> RuntimeError:
    return RuntimeError(
        f"{function}: its gradient is differentiated, and it has no second derivatives: leave create_graph=True out, "
        "or compute this product with torch.matmul"
    )


def is_batched(tensors: Sequence[Any]) -> bool:
    """Whether torch vectorizes over one of them."""
    return any("Batched" in str(torch._C._dispatch_keys(each)) for each in tensors if each is not None)


def of_batched_gradients(function: str) -> RuntimeError:
    return RuntimeError(
        f"{function}: its gradient comes as a batch, by is_grads_batched=True or vectorize=True, and its backward "
        "takes one at a time: leave that argument out, or call torch.autograd.grad for each"
    )


def check_no_forward_mode(function: str) -> None:
    """Raises RuntimeError in forward-mode differentiation."""
    forward_ad: Any = torch.autograd.forward_ad
    if forward_ad._current_level >= 0:
        raise RuntimeError(
            f"{function}: it has no forward-mode derivatives, and torch.autograd.forward_ad.dual_level() is entered; "
            "call it outside, with tensors that require grad, and take its gradients by backward()"
        )


def check_no_transforms(function: str) -> None:
    """Raises RuntimeError in forward-mode differentiation, and in a function that torch.func transforms."""
    check_no_forward_mode(function)
    transforms: Any = torch._C
    if not transforms._are_functorch_transforms_active():
        return
    raise RuntimeError(
        f"{function}: torch.func's transforms (grad, vmap, jvp and others) do not go through it; use tensors that "
        "require grad with torch.autograd.grad or backward()"
    )


def check_tensors(function: str, **tensors: Any) -> None:
    """Raises TypeError for what is no array, for a tensor that is spread over processes, as a call multiplies what lies
    in one, and for one that is made of several."""
    for name, tensor in tensors.items():
        if isinstance(tensor, (int, float, complex, str, list, tuple, dict)):
            raise TypeError(f"{function}: {name} is of type {type(tensor).__name__}; a tensor is needed")
        if type(tensor).__name__ == "DTensor":
            raise TypeError(
                f"{function}: {name} is a DTensor, and a call multiplies tensors of one process: pass "
                f"{name}.to_local(), and make a DTensor of the output with DTensor.from_local"
            )
        if getattr(tensor, "is_nested", False):
            raise TypeError(
                f"{function}: {name} is a NestedTensor, and a call takes plain tensors: {name}.values() has all rows, "
                f"which {name}.offsets()[1:].int() divides into groups for grouped_mm"
            )


def check_number(function: str, argument: str, value: Any) -> None:
    """Raises TypeError for a tensor, whose gradient would be lost, and for a str."""
    if isinstance(value, torch.Tensor):
        raise TypeError(
            f"{function}: {argument} is a Tensor; a number is needed: float({argument}) reads it, waits for the device "
            "and has no gradient"
        )
    if isinstance(value, str):
        raise TypeError(f"{function}: {argument} is a str; a number is needed")


def check_words(function: str, **arguments: Any) -> None:
    """Raises TypeError for a function or a number in place of a name, which an op has no type for."""
    for argument, value in arguments.items():
        if value is not None and not isinstance(value, str):
            raise TypeError(f"{function}: {argument} is a {type(value).__name__}; its name is needed, as a str")


def of_tensors_without_memory(function: str, kind: type) -> TypeError:
    return TypeError(
        f"{function}: a {kind.__module__}.{kind.__qualname__} has no memory of its own to read; pass the torch.Tensor "
        "that it holds"
    )


def requires_grad(tensors: dict[str, Any]) -> str | None:
    """The name of the first that does."""
    return next((name for name, tensor in tensors.items() if getattr(tensor, "requires_grad", False)), None)


def words(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")
