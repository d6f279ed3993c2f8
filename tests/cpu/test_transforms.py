"""What torch differentiates or records in other ways than by backward: each call refuses it, by name."""

import pytest

torch = pytest.importorskip("torch")

import gg_runtime  # noqa: E402
import gg_runtime.torch.experts  # noqa: E402
import gradient_cases as cases  # noqa: E402


def case_of(form: str) -> cases.Case:
    return cases.make(form, dtype=torch.bfloat16, device="cpu")


def test_forward_mode_differentiation_of_a_call_that_is_recorded_is_refused():
    case = case_of("ragged_m")
    learned = case._replace(mat_b=case.mat_b.detach().requires_grad_())
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(case.mat_a, torch.ones_like(case.mat_a))
        with pytest.raises(RuntimeError, match="grouped_mm: it has no forward-mode derivatives.*call it outside"):
            learned._replace(mat_a=dual).multiply(gg_runtime.grouped_mm)


EACH = {
    "grouped_mm": lambda x: gg_runtime.grouped_mm(x, torch.ones(2, 8, 8).half(), offs=torch.tensor([2, 6]).int()),
    "group_gemm": lambda x: gg_runtime.group_gemm([x], [torch.ones(8, 4).half()]),
    "fused_experts": lambda x: gg_runtime.fused_experts(
        x, torch.ones(2, 8, 8).half(), torch.ones(2, 4, 8).half(), torch.ones(6, 1), torch.zeros(6, 1).int()
    ),
    "combine": lambda x: gg_runtime.combine(x, torch.zeros(6, 1).int()),
    "quantize_1x128": lambda x: gg_runtime.quantize_1x128(x),
    "Plan": lambda x: gg_runtime.Plan(x, torch.ones(2, 8, 8).half(), offs=torch.tensor([2, 6]).int()),
}


@pytest.mark.parametrize("function", EACH)
def test_a_tangent_is_not_lost_where_nothing_requires_grad(function):
    x = torch.ones(6, 8).half()
    with torch.autograd.forward_ad.dual_level():
        EACH[function](x)
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        with pytest.raises(RuntimeError, match="no forward-mode derivatives.*call it outside"):
            EACH[function](dual)
        with torch.no_grad(), pytest.raises(RuntimeError, match="no forward-mode derivatives"):
            EACH[function](dual)


@pytest.mark.parametrize("call", ["group_gemm", "grouped_mm", "combine", "fused_experts", "Plan"])
def test_outputs_have_no_tangent(call):
    a, b, ids = torch.ones(6, 8).half(), torch.ones(2, 8, 8).half(), torch.zeros(6, 1).int()
    calls = {
        "group_gemm": lambda out: gg_runtime.group_gemm([a], [b[0]], out=[out]),
        "grouped_mm": lambda out: gg_runtime.grouped_mm(a, b, offs=torch.tensor([2, 6]).int(), out=out),
        "combine": lambda out: gg_runtime.combine(a, ids, out=out),
        "fused_experts": lambda out: gg_runtime.fused_experts(a, b, b[:, :4], ids + 1.0, ids, out=out),
        "Plan": lambda out: gg_runtime.Plan([a], [b[0]], out=[out]),
    }
    with torch.autograd.forward_ad.dual_level():
        calls[call](a.clone())
        dual = torch.autograd.forward_ad.make_dual(a.clone(), torch.ones_like(a))
        with pytest.raises(ValueError, match=r"out(\[0\])? has a tangent, .*; pass an array without one"):
            calls[call](dual)


def test_transforms_of_torch_func_are_refused_by_name():
    case = case_of("ragged_m")
    with pytest.raises(RuntimeError, match="grouped_mm: torch.func's transforms .*torch.autograd.grad"):
        torch.func.grad(lambda b: case._replace(mat_b=b).multiply(gg_runtime.grouped_mm).sum())(case.mat_b)
    with pytest.raises(
        TypeError, match="grouped_mm: mat_b.* cannot be read.*; torch.func's transforms .*outside of them"
    ):
        torch.func.vmap(lambda b: case._replace(mat_b=b).multiply(gg_runtime.grouped_mm))(case.mat_b[None])


@pytest.mark.parametrize("function", [gg_runtime.fused_experts, gg_runtime.torch.experts.fused_experts])
def test_transforms_of_a_layer_are_refused_by_name(function):
    ids, weights = torch.zeros(3, 1, dtype=torch.int64), torch.ones(3, 1)
    x, w1, w2 = torch.randn(3, 8).bfloat16(), torch.randn(2, 8, 8).bfloat16(), torch.randn(2, 4, 8).bfloat16()
    with pytest.raises(RuntimeError, match="fused_experts: torch.func's transforms .*torch.autograd.grad"):
        torch.func.grad(lambda w: function(x, w, w2, weights, ids).float().sum())(w1)


@pytest.mark.parametrize("recorded", [False, True])
def test_torch_jit_trace_is_refused(recorded):
    """It would give the outputs of the example again, or memory that nobody wrote."""
    case = case_of("ragged_m")
    mat_b = case.mat_b.clone().requires_grad_(recorded)
    with pytest.raises(
        RuntimeError, match="grouped_mm: mat_[ab]: torch.jit.trace would record this call's outputs.*torch.export"
    ):
        torch.jit.trace(lambda a: gg_runtime.grouped_mm(a, mat_b, offs=case.offs), (case.mat_a,), check_trace=False)


def test_torch_jit_trace_of_routing_and_of_an_output_is_refused_by_name():
    ids = torch.tensor([[0, 1], [1, 2]])
    with pytest.raises(RuntimeError, match="route: topk_ids: torch.jit.trace would record"):
        torch.jit.trace(lambda ids: gg_runtime.route(ids, 3).token, (ids,), check_trace=False)
    y, inverse, out = torch.ones(4, 8).half(), torch.arange(4, dtype=torch.int32)[:, None], torch.ones(4, 8).half()
    with pytest.raises(RuntimeError, match="^combine: out: torch.jit.trace would record"):
        torch.jit.trace(lambda y: gg_runtime.combine(y, inverse, out=out), (y,), check_trace=False)
