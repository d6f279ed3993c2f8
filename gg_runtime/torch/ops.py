# pyright: standard
"""The ops that torch.compile, torch.export and AOTInductor see, `torch.ops.gg_runtime.*`; eager calls come past them.

Each is defined by its schema, implemented by a function of gg_runtime, and has a fake for shapes and, where there are
gradients, their formula. Outputs are row-major, and inputs come with the strides that they have in eager.
"""

from collections.abc import Callable
from typing import Any

import torch

import gg_runtime

from . import gradients, refusals, shapes

LIBRARY = torch.library.Library("gg_runtime", "FRAGMENT")  # ops live as long as this object
# Inputs come with the strides that they have in eager; before torch 2.7, in the same order of strides.
_STRIDES: Any = getattr(torch.Tag, "needs_exact_strides", None) or torch.Tag.needs_fixed_stride_order
TAGS = (_STRIDES, torch.Tag.pt2_compliant_tag)
_PLAIN_DISPATCH: Any = vars(torch.Tensor)["__torch_dispatch__"]
_GROUPED_MM = (
    "Tensor mat_a, Tensor mat_b, Tensor? offs=None, Tensor? bias=None, ScalarType? out_dtype=None, "
    "Tensor? scale_a=None, Tensor? scale_b=None, bool batch_invariant=False, Tensor? a_index=None, "
    'str? activation=None, str gate_up="gate_first", Tensor? b_index=None, Tensor? counts=None, '
    "float alpha=1., Tensor? alpha_at=None"
)
_SCHEMAS = {
    "grouped_mm": f"({_GROUPED_MM}, int k_alignment=1, float? swiglu_limit=None) -> Tensor",
    "grouped_mm_into": "(Tensor(a!) out, "
    + _GROUPED_MM.replace("float alpha", "Tensor(b!)? preactivation=None, float alpha")
    + ", float beta=0., Tensor? beta_at=None, int k_alignment=1, float? swiglu_limit=None) -> ()",
    "group_gemm": "(Tensor[] group_A, Tensor[] group_B, ScalarType? out_dtype=None, Tensor? scale_a=None, "
    "Tensor? scale_b=None, Tensor[]? scales_a=None, Tensor[]? scales_b=None) -> Tensor[]",
    "route": "(Tensor topk_ids, SymInt experts, Tensor? expert_map=None) -> (Tensor, Tensor, Tensor, Tensor)",
    "combine": "(Tensor y, Tensor inverse, Tensor? weights=None, Tensor? add=None, float scale=1.) -> Tensor",
    "quantize_1x128": "(Tensor x) -> (Tensor, Tensor)",
    "fused_experts": "(Tensor x, Tensor w1, Tensor w2, Tensor topk_weights, Tensor topk_ids, "
    'str? activation="swiglu", str gate_up="gate_first", Tensor? b1=None, Tensor? b2=None, '
    "Tensor? expert_map=None, bool apply_router_weight_on_input=False, Tensor? add=None, float scale=1., "
    "SymInt? max_rows=None, bool batch_invariant=False, Tensor? w1_scale=None, Tensor? w2_scale=None, "
    "float? swiglu_limit=None) -> Tensor",
}


def _named(op: Any, values: Any) -> dict[str, Any]:
    """The arguments of an op by their names."""
    return dict(zip((argument.name for argument in op._schema.arguments), values))


def _define(name: str, function: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    LIBRARY.define(name + _SCHEMAS[name], tags=TAGS)
    for device in ("CPU", "CUDA"):
        LIBRARY.impl(name, function, device)
    torch.library.register_fake(f"gg_runtime::{name}", fake, lib=LIBRARY)
    return getattr(torch.ops.gg_runtime, name).default


def _check_plain(function: str, *tensors: Any) -> None:
    """Raises TypeError for a tensor of a class that did not unwrap it before the dispatcher came to a kernel."""
    for tensor in tensors:
        if type(tensor).__torch_dispatch__ is not _PLAIN_DISPATCH:
            raise refusals.of_tensors_without_memory(function, type(tensor))


def _grouped_mm(
    mat_a: Any, mat_b: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None, scale_a: Any = None,
    scale_b: Any = None, batch_invariant: bool = False, a_index: Any = None, activation: Any = None,
    gate_up: str = "gate_first", b_index: Any = None, counts: Any = None, alpha: float = 1.0, alpha_at: Any = None,
    k_alignment: int = 1, swiglu_limit: Any = None,
) -> Any:  # fmt: skip
    _check_plain("grouped_mm", mat_a, mat_b)
    return gg_runtime.grouped_mm(
        mat_a, mat_b, offs=offs, bias=bias, out_dtype=out_dtype, scale_a=scale_a, scale_b=scale_b,
        batch_invariant=batch_invariant, a_index=a_index, activation=activation, gate_up=gate_up,
        swiglu_limit=swiglu_limit, b_index=b_index,
        counts=counts, alpha=alpha if alpha_at is None else alpha_at, k_alignment=k_alignment,
    )  # fmt: skip


def _fake_grouped_mm(
    mat_a: Any, mat_b: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None, scale_a: Any = None,
    scale_b: Any = None, batch_invariant: bool = False, a_index: Any = None, activation: Any = None, *_: Any,
    **__: Any,
) -> Any:  # fmt: skip
    shape = shapes.of_grouped_mm(mat_a, mat_b, offs, a_index, activation)
    return mat_a.new_empty(shape, dtype=shapes.dtype_of_product(mat_a, out_dtype))


def _grouped_mm_into(
    out: Any, mat_a: Any, mat_b: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None, scale_a: Any = None,
    scale_b: Any = None, batch_invariant: bool = False, a_index: Any = None, activation: Any = None,
    gate_up: str = "gate_first", b_index: Any = None, counts: Any = None, preactivation: Any = None,
    alpha: float = 1.0, alpha_at: Any = None, beta: float = 0.0, beta_at: Any = None, k_alignment: int = 1,
    swiglu_limit: Any = None,
) -> None:  # fmt: skip
    _check_plain("grouped_mm", mat_a, mat_b, out)
    gg_runtime.grouped_mm(
        mat_a, mat_b, offs=offs, bias=bias, out_dtype=out_dtype, out=out, scale_a=scale_a, scale_b=scale_b,
        batch_invariant=batch_invariant, a_index=a_index, activation=activation, gate_up=gate_up,
        swiglu_limit=swiglu_limit, b_index=b_index,
        counts=counts, preactivation=preactivation, alpha=alpha if alpha_at is None else alpha_at,
        beta=beta if beta_at is None else beta_at, k_alignment=k_alignment,
    )  # fmt: skip


def _group_gemm(
    group_A: Any, group_B: Any, out_dtype: Any = None, scale_a: Any = None, scale_b: Any = None, scales_a: Any = None,
    scales_b: Any = None,
) -> Any:  # fmt: skip
    _check_plain("group_gemm", *group_A, *group_B)
    # In memory of their own: outputs of an op may not share any, as those of an eager call do.
    out = _fake_group_gemm(group_A, group_B, out_dtype)
    given = {"scale_a": scale_a if scales_a is None else scales_a, "scale_b": scale_b if scales_b is None else scales_b}
    return gg_runtime.group_gemm(group_A, group_B, out=out, **given)


def _fake_group_gemm(group_A: Any, group_B: Any, out_dtype: Any = None, *_: Any, **__: Any) -> Any:
    if len(group_A) != len(group_B):
        raise ValueError(
            f"group_gemm: group_A has {len(group_A)} matrices and group_B has {len(group_B)}; product i needs A[i] and "
            "B[i]"
        )
    return [
        a.new_empty((a.shape[0], b.shape[1]), dtype=shapes.dtype_of_product(a, out_dtype))
        for a, b in zip(group_A, group_B)
    ]


def _route(topk_ids: Any, experts: int, expert_map: Any = None) -> Any:
    _check_plain("route", topk_ids)
    return tuple(gg_runtime.route(topk_ids, experts, expert_map))


def _fake_route(topk_ids: Any, experts: int, expert_map: Any = None) -> Any:
    tokens, slots = topk_ids.shape
    sizes = (experts,), (tokens * slots,), (tokens * slots,), (tokens, slots)
    return tuple(topk_ids.new_empty(size, dtype=torch.int32) for size in sizes)


def _combine(y: Any, inverse: Any, weights: Any = None, add: Any = None, scale: float = 1.0) -> Any:
    _check_plain("combine", y)
    return gg_runtime.combine(y, inverse, weights, add=add, scale=scale)


def _fake_combine(y: Any, inverse: Any, *_: Any, **__: Any) -> Any:
    return y.new_empty((inverse.shape[0], y.shape[1]))


def _quantize_1x128(x: Any) -> Any:
    _check_plain("quantize_1x128", x)
    return gg_runtime.quantize_1x128(x)


def _fake_quantize_1x128(x: Any) -> Any:
    if x.dim() != 2:
        raise ValueError(f"quantize_1x128: x has {x.dim()} dimensions; 2 are needed")
    rows, columns = x.shape
    blocks = (columns + 127) // 128
    return x.new_empty((rows, columns), dtype=torch.float8_e4m3fn), x.new_empty((rows, blocks), dtype=torch.float32)


def _fused_experts(x: Any, w1: Any, w2: Any, topk_weights: Any, topk_ids: Any, *others: Any, **named: Any) -> Any:
    _check_plain("fused_experts", x, w1, w2)
    names = [argument.name for argument in fused_experts._schema.arguments][5:]
    return gg_runtime.fused_experts(x, w1, w2, topk_weights, topk_ids, **dict(zip(names, others)), **named)


def _fake_fused_experts(x: Any, *_: Any, **__: Any) -> Any:
    return x.new_empty(x.shape)


grouped_mm = _define("grouped_mm", _grouped_mm, _fake_grouped_mm)
grouped_mm_into = _define("grouped_mm_into", _grouped_mm_into, lambda *_, **__: None)
group_gemm = _define("group_gemm", _group_gemm, _fake_group_gemm)
route = _define("route", _route, _fake_route)
combine = _define("combine", _combine, _fake_combine)
quantize_1x128 = _define("quantize_1x128", _quantize_1x128, _fake_quantize_1x128)
fused_experts = _define("fused_experts", _fused_experts, _fake_fused_experts)


def _keep_for_gradients(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    given = _named(grouped_mm, inputs)
    mat_a, mat_b = given["mat_a"], given["mat_b"]
    tensors = {name: given[name] for name in ("mat_a", "mat_b", "bias")}
    others = ("scale_a", "scale_b", "a_index", "activation", "b_index", "counts", "alpha")
    alpha = given["alpha"] if given["alpha_at"] is None else given["alpha_at"]
    refusals.check("grouped_mm", tensors, **({name: given[name] for name in others} | {"alpha": alpha}))
    refusals.check_dtypes("grouped_mm", tensors, mat_a.dtype, output.dtype)
    kept_a, kept_b, ctx.transposed = gradients.keep(mat_a, mat_b, *ctx.needs_input_grad[:2])
    ctx.save_for_backward(kept_a, kept_b, given["offs"])
    ctx.batch_invariant = given["batch_invariant"]


def _gradients(ctx: Any, gradient: Any) -> Any:
    mat_a, mat_b, offs = ctx.saved_tensors
    saved = gradients.Saved(mat_a, mat_b, offs, ctx.transposed, ctx.batch_invariant)
    # One for each argument that the dispatcher was given: it leaves out defaults at the end.
    needs = ctx.needs_input_grad
    wanted = needs[0], needs[1], len(needs) > 3 and needs[3]
    made = gradients.once(
        "grouped_mm",
        (gradient, mat_a, mat_b),
        lambda: gradients.of_grouped_mm(grouped_mm, gradient, saved, wanted),
    )
    return (made[0], made[1], None, made[2], *[None] * len(needs))[: len(needs)]


def _keep_lists(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    group_A, group_B, _, *scales = inputs
    tensors = {f"{name}[{i}]": t for name, group in (("A", group_A), ("B", group_B)) for i, t in enumerate(group)}
    for of_a, of_b in (scales[:2], scales[2:]):
        refusals.check("group_gemm", tensors, scale_a=of_a, scale_b=of_b)
    refusals.check_dtypes("group_gemm", tensors, group_A[0].dtype, output[0].dtype)
    ctx.save_for_backward(*group_A, *group_B)


def _gradients_of_lists(ctx: Any, of_outputs: Any) -> Any:
    count, matrices = len(of_outputs), ctx.saved_tensors
    wanted = (*ctx.needs_input_grad[0], *ctx.needs_input_grad[1])
    made = gradients.once(
        "group_gemm",
        (*of_outputs, *matrices),
        lambda: gradients.of_lists(group_gemm, of_outputs, matrices, {}, wanted),
    )
    return (list(made[:count]), list(made[count:]), *[None] * 5)[: len(ctx.needs_input_grad)]


def _refuse_gradients(op: Any) -> None:
    """Makes calls of an op raise RuntimeError where an input requires grad while torch records."""
    function = op._schema.name.partition("::")[2].removesuffix("_into")

    def kernel(keys: Any, *given: Any) -> Any:
        tensors = _named(op, given)
        if torch.is_grad_enabled() and refusals.requires_grad(tensors) is not None:
            if "out" in tensors:
                refusals.check(function, tensors, out=tensors["out"])
            raise refusals.of_forward_only(function, tensors)
        return op.redispatch(keys & torch._C._after_autograd_keyset, *given)

    LIBRARY.impl(op._schema.name.partition("::")[2], kernel, "Autograd", with_keyset=True)


torch.library.register_autograd("gg_runtime::grouped_mm", _gradients, setup_context=_keep_for_gradients, lib=LIBRARY)
torch.library.register_autograd("gg_runtime::group_gemm", _gradients_of_lists, setup_context=_keep_lists, lib=LIBRARY)
for _op in (grouped_mm_into, route, combine, quantize_1x128, fused_experts):
    _refuse_gradients(_op)
