"""What torch.compile reads in place of the functions of gg_runtime: the same arguments, computed by ops."""

from collections.abc import Sequence
from typing import Any

import torch

from ..arrays import is_list
from ..route import Routing
from . import expert_ops, ops, refusals, shapes

OUT_DTYPES = ("float16", "bfloat16", "float32", "float8_e4m3fn")  # by name


def grouped_mm(
    mat_a: Any,
    mat_b: Any,
    *,
    offs: Any = None,
    bias: Any = None,
    out_dtype: Any = None,
    out: Any = None,
    scale_a: Any = None,
    scale_b: Any = None,
    batch_invariant: bool = False,
    a_index: Any = None,
    activation: str | None = None,
    gate_up: str = "gate_first",
    swiglu_limit: Any = None,
    preactivation: Any = None,
    b_index: Any = None,
    counts: Any = None,
    alpha: Any = 1.0,
    beta: Any = 0.0,
    k_alignment: int = 1,
) -> Any:
    """`gg_runtime.grouped_mm`."""
    gate_up, k_alignment = _given(gate_up, "gate_first"), _given(k_alignment, 1)
    batch_invariant = bool(batch_invariant)
    refusals.check_words("grouped_mm", activation=activation, gate_up=gate_up)
    refusals.check_number("grouped_mm", "swiglu_limit", swiglu_limit)
    refusals.check_no_forward_mode("grouped_mm")
    refusals.check_tensors(
        "grouped_mm", mat_a=mat_a, mat_b=mat_b, offs=offs, bias=bias, out=out, scale_a=scale_a, scale_b=scale_b,
        a_index=a_index, preactivation=preactivation, b_index=b_index, counts=counts,
    )  # fmt: skip
    dtype = _dtype(out_dtype, "grouped_mm")
    factor, factor_at = _number_or_tensor(alpha, 1.0)
    if out is None and preactivation is None:
        if beta is not None and (not isinstance(beta, (int, float)) or beta != 0):
            raise ValueError("grouped_mm: beta is given without out, to which it would be a factor; pass out")
        return ops.grouped_mm(
            mat_a, mat_b, offs, bias, dtype, scale_a, scale_b, batch_invariant, a_index, activation, gate_up, b_index,
            counts, factor, factor_at, k_alignment, swiglu_limit,
        )  # fmt: skip
    inputs = {"mat_a": mat_a, "mat_b": mat_b, "bias": bias}
    if torch.is_grad_enabled() and refusals.requires_grad(inputs) is not None:
        # The op below has an output whatever was given: what the caller gave is told here, as without tracing.
        refusals.check(
            "grouped_mm", inputs, out=out, scale_a=scale_a, scale_b=scale_b, a_index=a_index, activation=activation,
            preactivation=preactivation, b_index=b_index, counts=counts, alpha=alpha, beta=beta,
        )  # fmt: skip
    if out is None:
        shape = shapes.of_grouped_mm(mat_a, mat_b, offs, a_index, activation)
        out = mat_a.new_empty(shape, dtype=shapes.dtype_of_product(mat_a, dtype))
    kept, kept_at = _number_or_tensor(beta, 0.0)
    ops.grouped_mm_into(
        out, mat_a, mat_b, offs, bias, dtype, scale_a, scale_b, batch_invariant, a_index, activation, gate_up, b_index,
        counts, preactivation, factor, factor_at, kept, kept_at, k_alignment, swiglu_limit,
    )  # fmt: skip
    return out


def group_gemm(
    group_A: Sequence[Any],
    group_B: Sequence[Any],
    *,
    out: Any = None,
    out_dtype: Any = None,
    scale_a: Any = None,
    scale_b: Any = None,
) -> list[Any]:
    """`gg_runtime.group_gemm`."""
    lists: dict[str, Any] = {"group_A": group_A, "group_B": group_B, "out": [] if out is None else out}
    for name, group in lists.items():
        if not is_list(group):
            raise TypeError(f"group_gemm: {name} is no list; a list or tuple of matrices is needed")
    if is_list(scale_a) != is_list(scale_b):
        name = "scale_b" if is_list(scale_a) else "scale_a"
        raise ValueError(
            f"group_gemm: {name} is no list, and the other scales are one: pass a list of as many arrays, or one array "
            "each"
        )
    refusals.check_no_forward_mode("group_gemm")
    for tensor in (*group_A, *group_B, *lists["out"]):
        refusals.check_tensors("group_gemm", **{"a matrix": tensor})
    if out is not None and torch.is_grad_enabled():
        inputs = {f"{name}[{i}]": one for name, group in zip("AB", (group_A, group_B)) for i, one in enumerate(group)}
        refusals.check("group_gemm", inputs, out=out)
    if not len(group_A) and not len(group_B):
        return [] if out is None else _all_copied([], out)
    dtype = out[0].dtype if out and out_dtype is None else _dtype(out_dtype, "group_gemm")
    scales = (None, None, list(scale_a), list(scale_b)) if is_list(scale_a) else (scale_a, scale_b, None, None)
    made = ops.group_gemm(list(group_A), list(group_B), dtype, *scales)
    return made if out is None else _all_copied(made, out)


def route(topk_ids: Any, experts: int, expert_map: Any = None) -> Routing:
    """`gg_runtime.route`."""
    refusals.check_tensors("route", topk_ids=topk_ids, expert_map=expert_map)
    return Routing(*ops.route(topk_ids, experts, expert_map))


def combine(y: Any, inverse: Any, weights: Any = None, *, add: Any = None, scale: float = 1.0, out: Any = None) -> Any:
    """`gg_runtime.combine`."""
    refusals.check_no_forward_mode("combine")
    refusals.check_tensors("combine", y=y, inverse=inverse, weights=weights, add=add, out=out)
    sums = ops.combine(y, inverse, weights, add, scale)
    return sums if out is None else _copied("combine", out, sums)


def quantize_1x128(x: Any) -> tuple[Any, Any]:
    """`gg_runtime.quantize_1x128`."""
    refusals.check_no_forward_mode("quantize_1x128")
    refusals.check_tensors("quantize_1x128", x=x)
    return ops.quantize_1x128(x)


def fused_experts(
    x: Any,
    w1: Any,
    w2: Any,
    topk_weights: Any,
    topk_ids: Any,
    *,
    activation: str | None = "swiglu",
    gate_up: str = "gate_first",
    swiglu_limit: Any = None,
    b1: Any = None,
    b2: Any = None,
    w1_scale: Any = None,
    w2_scale: Any = None,
    expert_map: Any = None,
    apply_router_weight_on_input: bool = False,
    add: Any = None,
    scale: float = 1.0,
    out: Any = None,
    workspace: Any = None,
    max_rows: int | None = None,
    batch_invariant: bool = False,
) -> Any:
    """`gg_runtime.fused_experts`. Its memory is torch's to plan: `workspace` is not used."""
    gate_up, batch_invariant = _given(gate_up, "gate_first"), bool(batch_invariant)
    inputs = {"x": x, "w1": w1, "w2": w2, "topk_weights": topk_weights, "b1": b1, "b2": b2, "add": add}
    scales = {"w1_scale": w1_scale, "w2_scale": w2_scale}
    refusals.check_words("fused_experts", activation=activation, gate_up=gate_up)
    refusals.check_number("fused_experts", "swiglu_limit", swiglu_limit)
    refusals.check_no_forward_mode("fused_experts")
    refusals.check_tensors("fused_experts", **inputs, **scales, topk_ids=topk_ids, out=out)
    if torch.is_grad_enabled() and refusals.requires_grad(inputs | scales) is not None:
        refusals.check("fused_experts", inputs, out=out, **scales)
        refusals.check_no_workspace("fused_experts", inputs, workspace=workspace, max_rows=max_rows)
        return expert_ops.fused_experts(
            x, w1, w2, topk_weights, topk_ids, activation=activation, gate_up=gate_up, swiglu_limit=swiglu_limit,
            b1=b1, b2=b2, expert_map=expert_map, apply_router_weight_on_input=apply_router_weight_on_input, add=add,
            scale=scale, batch_invariant=batch_invariant,
        )  # fmt: skip
    sums = ops.fused_experts(
        x, w1, w2, topk_weights, topk_ids, activation, gate_up, b1, b2, expert_map, apply_router_weight_on_input, add,
        scale, max_rows, batch_invariant, w1_scale, w2_scale, swiglu_limit,
    )  # fmt: skip
    return sums if out is None else _copied("fused_experts", out, sums)


def _dtype(wanted: Any, function: str) -> Any:
    """A dtype by itself or by its name."""
    if not isinstance(wanted, str):
        return wanted
    name = wanted.removeprefix("torch.")
    if name not in OUT_DTYPES:
        raise ValueError(
            f"{function}: out_dtype is {wanted}; {', '.join(OUT_DTYPES[:-1])} or {OUT_DTYPES[-1]} is needed"
        )
    return getattr(torch, name)


def _given(value: Any, default: Any) -> Any:
    """None counts as left out."""
    return default if value is None else value


def _number_or_tensor(factor: Any, neutral: float) -> tuple[float, Any]:
    """(number, tensor) of a factor, which is one of them; the other is neutral or None."""
    return (float(factor), None) if isinstance(factor, (int, float)) else (neutral, factor)


def _copied(function: str, out: Any, made: Any, name: str = "out") -> Any:
    """`out` with what was made. `copy_` would broadcast and convert, which a call that is not traced refuses."""
    if out.shape != made.shape:
        raise ValueError(f"{function}: {name} has shape {list(out.shape)}; {list(made.shape)} is needed")
    if out.dtype != made.dtype:
        raise TypeError(
            f"{function}: {name} has dtype {refusals.words(out.dtype)}; {refusals.words(made.dtype)} is needed"
        )
    if out.device != made.device:
        raise ValueError(
            f"{function}: {name} is on {out.device} but the inputs are on {made.device}; move all to one device"
        )
    return out.copy_(made)


def _all_copied(made: Sequence[Any], out: Sequence[Any]) -> list[Any]:
    if len(made) != len(out):
        raise ValueError(f"group_gemm: out has {len(out)} matrices, and there are {len(made)} products")
    for i, c in enumerate(out):  # of those that share memory, what tracing can tell
        for j in range(i):
            if c is out[j]:
                raise ValueError(f"group_gemm: out[{i}] shares memory with out[{j}]; outputs that are apart are needed")
    for i, (c, product) in enumerate(zip(out, made)):
        _copied("group_gemm", c, product, f"out[{i}]")
    return list(out)
