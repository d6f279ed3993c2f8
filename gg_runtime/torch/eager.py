# pyright: standard
"""Gradients outside of torch's dispatcher: where `gg_runtime.grouped_mm` and `group_gemm` go when torch takes part."""

from collections.abc import Sequence
from typing import Any, cast

import torch

import gg_runtime

from .. import _C
from . import experts, gradients, refusals, traced


class GroupedMM(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mat_a: Any, mat_b: Any, offs: Any, bias: Any, out_dtype: Any, batch_invariant: bool) -> Any:
        output = _C.grouped_mm(mat_a, mat_b, offs, bias, out_dtype, None, None, None, batch_invariant)
        if not isinstance(output, torch.Tensor):  # by the CPU's reference, or by the op
            output = gg_runtime.grouped_mm(
                mat_a, mat_b, offs=offs, bias=bias, out_dtype=out_dtype, batch_invariant=batch_invariant
            )
        dtype = mat_a.dtype
        if output.dtype is not dtype or dtype is torch.float8_e4m3fn:
            refusals.check_dtypes("grouped_mm", _named(mat_a, mat_b, bias), dtype, output.dtype)
        needs = ctx.needs_input_grad
        mat_a, mat_b, ctx.transposed = gradients.keep(mat_a, mat_b, needs[0], needs[1])
        ctx.save_for_backward(mat_a, mat_b, offs)
        ctx.batch_invariant = batch_invariant
        ctx.set_materialize_grads(False)
        return output

    @staticmethod
    def backward(ctx: Any, *of_outputs: Any) -> Any:
        (gradient,) = of_outputs
        if gradient is None:
            return (None,) * 6
        needs = ctx.needs_input_grad
        mat_a, mat_b, offs = ctx.saved_tensors
        saved = gradients.Saved(mat_a, mat_b, offs, ctx.transposed, ctx.batch_invariant)
        wanted = needs[0], needs[1], needs[3]
        of_a, of_b, of_bias = gradients.once(
            "grouped_mm",
            (gradient, mat_a, mat_b),
            lambda: gradients.of_grouped_mm(gg_runtime.grouped_mm, gradient, saved, wanted),
        )
        return of_a, of_b, None, of_bias, None, None


class GroupGemm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, out_dtype: Any, *matrices: Any) -> Any:
        count = len(matrices) // 2
        group_A, group_B = matrices[:count], matrices[count:]
        outputs = gg_runtime.group_gemm(group_A, group_B, out_dtype=out_dtype)
        refusals.check_dtypes("group_gemm", _named_lists(group_A, group_B), group_A[0].dtype, outputs[0].dtype)
        ctx.save_for_backward(*matrices)
        ctx.set_materialize_grads(False)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *of_outputs: Any) -> Any:
        count, matrices = len(of_outputs), ctx.saved_tensors
        wanted = ctx.needs_input_grad[1:]
        made = gradients.once(
            "group_gemm",
            (*of_outputs, *matrices),
            lambda: gradients.of_lists(gg_runtime.group_gemm, of_outputs, matrices[:count], matrices[count:], wanted),
        )
        return None, *made


# What Function.apply itself calls, past its checks for torch.func's transforms, which take as long again.
_apply_grouped_mm: Any = cast(Any, super(torch.autograd.Function, GroupedMM)).apply
_apply_group_gemm: Any = cast(Any, super(torch.autograd.Function, GroupGemm)).apply


def grouped_mm(
    mat_a: Any,
    mat_b: Any,
    offs: Any,
    bias: Any,
    out_dtype: Any,
    out: Any,
    scale_a: Any,
    scale_b: Any,
    batch_invariant: bool,
    a_index: Any,
    activation: Any,
    gate_up: Any,
    preactivation: Any,
    b_index: Any,
    counts: Any,
    alpha: Any,
    beta: Any,
) -> Any:
    """`gg_runtime.grouped_mm` where an input requires grad, or a tensor has no memory of its own."""
    requires_grad = mat_a.requires_grad or mat_b.requires_grad or (bias is not None and bias.requires_grad)
    if not requires_grad or not torch.is_grad_enabled():
        return traced.grouped_mm(
            mat_a, mat_b, offs=offs, bias=bias, out_dtype=out_dtype, out=out, scale_a=scale_a, scale_b=scale_b,
            batch_invariant=batch_invariant, a_index=a_index, activation=activation, gate_up=gate_up,
            preactivation=preactivation, b_index=b_index, counts=counts, alpha=alpha, beta=beta,
        )  # fmt: skip
    plain = out is scale_a is scale_b is a_index is activation is preactivation is b_index is counts is None
    if not plain or type(alpha) is not float or alpha != 1.0 or type(beta) is not float or beta != 0.0:
        refusals.check(
            "grouped_mm", _named(mat_a, mat_b, bias), out=out, scale_a=scale_a, scale_b=scale_b, a_index=a_index,
            activation=activation, preactivation=preactivation, b_index=b_index, counts=counts, alpha=alpha, beta=beta,
        )  # fmt: skip
    apply = GroupedMM.apply if torch._C._are_functorch_transforms_active() else _apply_grouped_mm
    return apply(mat_a, mat_b, offs, bias, out_dtype, batch_invariant)


def fused_experts(x: Any, *others: Any, **named: Any) -> Any:
    """`gg_runtime.fused_experts` where an input requires grad, or a tensor has no memory of its own."""
    has_memory = type(x).__torch_dispatch__ is torch.Tensor.__torch_dispatch__
    return (experts if has_memory else traced).fused_experts(x, *others, **named)


def group_gemm(
    group_A: Sequence[Any], group_B: Sequence[Any], out: Any, out_dtype: Any, scale_a: Any, scale_b: Any
) -> list[Any]:
    """`gg_runtime.group_gemm` where an input requires grad, or a tensor has no memory of its own."""
    requires_grad = any(tensor.requires_grad for group in (group_A, group_B) for tensor in group)
    if not requires_grad or not torch.is_grad_enabled():
        return traced.group_gemm(group_A, group_B, out=out, out_dtype=out_dtype, scale_a=scale_a, scale_b=scale_b)
    tensors = _named_lists(group_A, group_B)
    refusals.check("group_gemm", tensors, out=out, scale_a=scale_a, scale_b=scale_b)
    apply = GroupGemm.apply if torch._C._are_functorch_transforms_active() else _apply_group_gemm
    return list(apply(out_dtype, *group_A, *group_B))


def _named(mat_a: Any, mat_b: Any, bias: Any) -> dict[str, Any]:
    return {"mat_a": mat_a, "mat_b": mat_b, "bias": bias}


def _named_lists(group_A: Sequence[Any], group_B: Sequence[Any]) -> dict[str, Any]:
    groups = (("A", group_A), ("B", group_B))
    return {f"{name}[{i}]": tensor for name, group in groups for i, tensor in enumerate(group)}
