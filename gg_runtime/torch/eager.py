# pyright: standard
"""Gradients outside of torch's dispatcher: where `gg_runtime.grouped_mm` and `group_gemm` go while torch records."""

from collections.abc import Sequence
from typing import Any, cast

import torch

import gg_runtime

from . import experts, gradients, refusals


class GroupedMM(torch.autograd.Function):
    """A product that has been computed, and what its gradients need.

    For each call of a forward pass: it takes few arguments and keeps little, since each costs 0.1 us or more.
    """

    @staticmethod
    def forward(ctx: Any, mat_a: Any, mat_b: Any, bias: Any, made: tuple[Any, tuple[Any, ...], bool, bool]) -> Any:
        """made: the output, the tensors of `Saved`, and its other fields."""
        output, kept, transposed, batch_invariant = made
        ctx.save_for_backward(*kept)
        if transposed:
            ctx.transposed = True
        if batch_invariant:
            ctx.batch_invariant = True
        return output

    @staticmethod
    def backward(ctx: Any, *of_outputs: Any) -> Any:
        (gradient,) = of_outputs
        mat_a, mat_b, offs = ctx.saved_tensors
        transposed, batch_invariant = getattr(ctx, "transposed", False), getattr(ctx, "batch_invariant", False)
        saved = gradients.Saved(mat_a, mat_b, offs, transposed, batch_invariant)
        wanted = ctx.needs_input_grad[:3]
        made = gradients.once(
            "grouped_mm",
            (gradient, mat_a, mat_b),
            lambda: gradients.of_grouped_mm(gg_runtime.grouped_mm, gradient, saved, wanted),
        )
        return *made, None


class GroupGemm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, out_dtype: Any, *matrices: Any) -> Any:
        count = len(matrices) // 2
        group_A, group_B = matrices[:count], matrices[count:]
        outputs = gg_runtime.group_gemm(group_A, group_B, out_dtype=out_dtype)
        refusals.check_dtypes("group_gemm", _named_lists(group_A, group_B), group_A[0].dtype, outputs[0].dtype)
        kept, ctx.gone = gradients.keep_lists(matrices, ctx.needs_input_grad[1:])
        ctx.save_for_backward(*kept)
        ctx.set_materialize_grads(False)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *of_outputs: Any) -> Any:
        kept, wanted = ctx.saved_tensors, ctx.needs_input_grad[1:]
        made = gradients.once(
            "group_gemm",
            (*of_outputs, *kept),
            lambda: gradients.of_lists(gg_runtime.group_gemm, of_outputs, kept, ctx.gone, wanted),
        )
        return None, *made


# What Function.apply itself calls, past its checks for torch.func's transforms, which take as long again.
# csrc/api/grouped_mm.cpp calls the first with a product that it has launched.
record_grouped_mm: Any = cast(Any, super(torch.autograd.Function, GroupedMM)).apply
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
    _gate_up: Any,
    preactivation: Any,
    b_index: Any,
    counts: Any,
    alpha: Any,
    beta: Any,
) -> Any:
    """`gg_runtime.grouped_mm` while torch records gradients of an input, of a call that _C has not launched: one on
    the CPU, or one that has no gradients.
    """
    tensors = {"mat_a": mat_a, "mat_b": mat_b, "bias": bias}
    refusals.check_no_transforms("grouped_mm")
    refusals.check(
        "grouped_mm", tensors, out=out, scale_a=scale_a, scale_b=scale_b, a_index=a_index, activation=activation,
        preactivation=preactivation, b_index=b_index, counts=counts, alpha=alpha, beta=beta,
    )  # fmt: skip
    with torch.no_grad():
        output = gg_runtime.grouped_mm(
            mat_a, mat_b, offs=offs, bias=bias, out_dtype=out_dtype, batch_invariant=batch_invariant
        )
    refusals.check_dtypes("grouped_mm", tensors, mat_a.dtype, output.dtype)
    kept_a, kept_b, transposed = gradients.keep(mat_a, mat_b, mat_a.requires_grad, mat_b.requires_grad)
    return record_grouped_mm(mat_a, mat_b, bias, (output, (kept_a, kept_b, offs), transposed, batch_invariant))


def fused_experts(*arrays: Any, **options: Any) -> Any:
    """`gg_runtime.fused_experts` while torch records gradients of an input."""
    return experts.fused_experts(*arrays, **options)


def group_gemm(
    group_A: Sequence[Any], group_B: Sequence[Any], out: Any, out_dtype: Any, scale_a: Any, scale_b: Any
) -> list[Any]:
    """`gg_runtime.group_gemm` while torch records gradients of an input."""
    tensors = _named_lists(group_A, group_B)
    refusals.check_no_transforms("group_gemm")
    refusals.check("group_gemm", tensors, out=out, scale_a=scale_a, scale_b=scale_b)
    return list(_apply_group_gemm(out_dtype, *group_A, *group_B))


def _named_lists(group_A: Sequence[Any], group_B: Sequence[Any]) -> dict[str, Any]:
    groups = (("A", group_A), ("B", group_B))
    return {f"{name}[{i}]": tensor for name, group in groups for i, tensor in enumerate(group)}
