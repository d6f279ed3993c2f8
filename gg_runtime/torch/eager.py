# pyright: standard, reportMissingModuleSource=false
"""Gradients outside of torch's dispatcher: where `gg_runtime.grouped_mm` and `group_gemm` go while torch records."""

from collections.abc import Sequence
from typing import Any, cast

import torch

import gg_runtime

from .. import _C
from . import experts, gradients, refusals


class GroupedMM(torch.autograd.Function):
    """A product that has been computed, and what its gradients need. Its inputs are those of mat_a, mat_b and bias
    whose gradients are recorded. `_C.record_product` applies it, by RECORDERS.
    """

    of_a = of_b = False  # whether mat_a and mat_b are among them

    @staticmethod
    def backward(ctx: Any, *of_outputs: Any) -> Any:
        (gradient,) = of_outputs
        of_a, of_b = ctx._forward_cls.of_a, ctx._forward_cls.of_b
        *matrices, offs = ctx.saved_tensors  # mat_a if of_b, then mat_b if of_a
        mat_a, mat_b = matrices[0] if of_b else None, matrices[-1] if of_a else None
        transposed, batch_invariant = getattr(ctx, "transposed", False), getattr(ctx, "batch_invariant", False)
        saved = gradients.Saved(mat_a, mat_b, offs, transposed, batch_invariant)
        wanted = of_a, of_b, len(ctx.needs_input_grad) > of_a + of_b
        made = gradients.once(
            "grouped_mm",
            (gradient, mat_a, mat_b),
            lambda: gradients.of_grouped_mm(gg_runtime.grouped_mm, gradient, saved, wanted),
        )
        return tuple(gradient for gradient in made if gradient is not None)


def _recorder(of_a: bool, of_b: bool) -> Any:
    """A class whose `apply` records a product, for each call of a forward pass.

    `apply` looks these attributes up, by strings that are new each time and so are in no cache of Python's: in the
    metaclass and its bases, then in the class and its bases. Here they are found at once, in the class itself.
    """
    base: Any = torch._C._FunctionBase
    metaclass: Any = type(GroupedMM)
    function = metaclass("GroupedMM", (GroupedMM,), {"of_a": of_a, "of_b": of_b, "__module__": __name__})
    looked_up = {
        "__module__": __name__,
        "__slots__": (),
        "forward": _C.keep_product,
        "_backward_cls": function._backward_cls,
        "setup_context": torch.autograd.Function.setup_context,
        "clear_saved_tensors_on_access": False,
        "boxed_grads_call": False,
    }
    return _C.RecorderType("GroupedMM", (base,), looked_up)


# By whether gradients of mat_a, and of mat_b, are recorded; for csrc/api/record_product.cpp.
RECORDERS = {(of_a, of_b): _recorder(of_a, of_b) for of_a in (False, True) for of_b in (False, True)}


class GroupGemm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, out_dtype: Any, count: int, *matrices: Any) -> Any:
        group_A, group_B = matrices[:count], matrices[count:]
        outputs = gg_runtime.group_gemm(group_A, group_B, out_dtype=out_dtype)
        refusals.check_dtypes("group_gemm", _named_lists(group_A, group_B), group_A[0].dtype, outputs[0].dtype)
        kept, ctx.gone = gradients.keep_lists(matrices, ctx.needs_input_grad[2:])
        ctx.save_for_backward(*kept)
        ctx.set_materialize_grads(False)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *of_outputs: Any) -> Any:
        kept, wanted = ctx.saved_tensors, ctx.needs_input_grad[2:]
        made = gradients.once(
            "group_gemm",
            (*of_outputs, *kept),
            lambda: gradients.of_lists(gg_runtime.group_gemm, of_outputs, kept, ctx.gone, wanted),
        )
        return None, None, *made


# What Function.apply itself calls, past its checks for torch.func's transforms, which take as long again.
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
    _swiglu_limit: Any,
    preactivation: Any,
    b_index: Any,
    counts: Any,
    alpha: Any,
    beta: Any,
    k_alignment: Any,
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
            mat_a,
            mat_b,
            offs=offs,
            bias=bias,
            out_dtype=out_dtype,
            batch_invariant=batch_invariant,
            k_alignment=k_alignment,
        )
    refusals.check_dtypes("grouped_mm", tensors, mat_a.dtype, output.dtype)
    return _C.record_product(output, mat_a, mat_b, offs, bias, batch_invariant)


def fused_experts(*arrays: Any, **options: Any) -> Any:
    """`gg_runtime.fused_experts` while torch records gradients of an input, or an input has a tangent."""
    return experts.fused_experts(*arrays, **options)


def group_gemm(
    group_A: Sequence[Any], group_B: Sequence[Any], out: Any, out_dtype: Any, scale_a: Any, scale_b: Any
) -> list[Any]:
    """`gg_runtime.group_gemm` while torch records gradients of an input."""
    tensors = _named_lists(group_A, group_B)
    refusals.check_no_transforms("group_gemm")
    refusals.check("group_gemm", tensors, out=out, scale_a=scale_a, scale_b=scale_b)
    return list(_apply_group_gemm(out_dtype, len(group_A), *group_A, *group_B))


def _named_lists(group_A: Sequence[Any], group_B: Sequence[Any]) -> dict[str, Any]:
    groups = (("A", group_A), ("B", group_B))
    return {f"{name}[{i}]": tensor for name, group in groups for i, tensor in enumerate(group)}
