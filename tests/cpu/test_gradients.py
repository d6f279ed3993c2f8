"""Gradients of products, on the CPU path: what they are, what they keep, and what is refused by name."""

import pytest

torch = pytest.importorskip("torch")

import gg_runtime  # noqa: E402
import gradient_cases as cases  # noqa: E402
from gg_runtime import _C  # noqa: E402
from gg_runtime.torch import eager  # noqa: E402
from gradient_cases import FORMS  # noqa: E402

DTYPES = [torch.bfloat16, torch.float16]
WITH_BIAS = ["ragged_m", "batched"]


def case_of(form: str, dtype=torch.bfloat16, **options) -> cases.Case:
    return cases.make(form, dtype=dtype, device="cpu", **options)


def gradients_of(case: cases.Case) -> tuple:
    """(output, gradients of the inputs) by backward."""
    leaves = case.requiring_grad()
    output = leaves.multiply(gg_runtime.grouped_mm)
    assert output.requires_grad
    output.backward(case.gradient)
    return output.detach(), [leaf.grad for leaf in leaves.inputs()]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layouts", ["nn", "nt", "tn", "tt", "ss"])
@pytest.mark.parametrize("form", FORMS)
def test_gradients_are_those_of_a_loop_in_float64(form, layouts, dtype):
    case = case_of(form, dtype, layouts=layouts, bias=form in WITH_BIAS)
    cases.assert_exact(case, *gradients_of(case))


@pytest.mark.parametrize("ends", [[0, 0, 0, 0], [45, 45, 45, 45], [-3, 9, 4, 99], [45, 0, 0, 7]], ids=str)
@pytest.mark.parametrize("form", ["ragged_m", "ragged_n", "ragged_k"])
def test_gradients_of_any_ends(form, ends):
    case = case_of(form, ends=ends, bias=form in WITH_BIAS)
    cases.assert_exact(case, *gradients_of(case))


def test_a_gradient_that_is_expanded_or_transposed():
    case = case_of("ragged_m")
    for gradient in (torch.ones(()).bfloat16().expand(45, 40), cases.laid_out(case.gradient, "t")):
        case = case._replace(gradient=gradient)
        cases.assert_exact(case, *gradients_of(case))


@pytest.mark.parametrize("form", FORMS)
def test_gradients_have_the_same_bits_each_time(form):
    generator = torch.Generator().manual_seed(1)
    a, b, out = cases.shapes(form)
    drawn = [torch.randn(shape, generator=generator).bfloat16() for shape in (a, b, out)]
    case = case_of(form)._replace(mat_a=drawn[0], mat_b=drawn[1], gradient=drawn[2])
    first, again = gradients_of(case), gradients_of(case)
    assert all(torch.equal(x, y) for x, y in zip(first[1], again[1]))


@pytest.mark.parametrize("layouts", ["nn", "nt", "tn"])
@pytest.mark.parametrize("form", ["ragged_m", "ragged_n", "batched"])
def test_gradients_of_stacks_lie_as_the_stacks_do(form, layouts):
    case = case_of(form, layouts=layouts).requiring_grad()
    leaves = [leaf for leaf in (case.mat_a, case.mat_b) if leaf.dim() == 3]
    output = case.multiply(gg_runtime.grouped_mm)
    for leaf, gradient in zip(leaves, torch.autograd.grad(output, leaves, case.gradient)):
        assert gradient.stride() == leaf.stride()


class Counted:
    """A function and how often it was called."""

    def __init__(self, function):
        self.function, self.calls = function, 0

    def __call__(self, *arguments, **named):
        self.calls += 1
        return self.function(*arguments, **named)


@pytest.mark.parametrize("wanted", [["mat_a"], ["mat_b"], ["bias"], ["mat_a", "bias"]], ids="+".join)
@pytest.mark.parametrize("form", WITH_BIAS)
def test_only_the_gradients_that_are_asked_for_are_computed(form, wanted, monkeypatch):
    case = case_of(form, bias=True)
    _, expected = cases.exact(case)
    leaves = case._replace(**{name: getattr(case, name).detach().requires_grad_() for name in wanted})
    output = leaves.multiply(gg_runtime.grouped_mm)
    kept = {tensor.data_ptr() for tensor in output.grad_fn.saved_tensors if tensor is not None}
    assert (case.mat_a.data_ptr() in kept) == ("mat_b" in wanted)
    assert (case.mat_b.data_ptr() in kept) == ("mat_a" in wanted)
    counted = Counted(gg_runtime.grouped_mm)
    monkeypatch.setattr(gg_runtime, "grouped_mm", counted)
    output.backward(case.gradient)
    assert counted.calls == len(wanted)
    for name, gradient in zip(("mat_a", "mat_b", "bias"), expected):
        if name in wanted:
            cases.assert_same(getattr(leaves, name).grad, gradient, name)


def test_no_gradients_are_recorded_where_none_are_asked_for():
    case = case_of("ragged_m").requiring_grad()
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert not case.multiply(gg_runtime.grouped_mm).requires_grad


def test_a_call_within_the_recording_of_another_keeps_its_own_tensors(monkeypatch):
    """A finalizer may make one, in a garbage collection while torch sets up the node of the other."""
    case, other = case_of("ragged_m", bias=True), case_of("batched")
    recorder, gradients = eager.RECORDERS[True, True], []
    real = recorder._backward_cls

    def node():
        monkeypatch.undo()
        gradients.append(gradients_of(other))
        return real()

    monkeypatch.setattr(recorder, "_backward_cls", node)
    cases.assert_exact(case, *gradients_of(case))
    cases.assert_exact(other, *gradients[0])
    with pytest.raises(RuntimeError, match="keep_product: torch calls it"):
        recorder.apply(case.mat_a)


def test_a_recorder_is_an_ordinary_class_but_for_the_way_attributes_are_found():
    recorder = eager.RECORDERS[True, False]
    assert recorder.__mro__ == (recorder, torch._C._FunctionBase, object)
    assert vars(recorder)["forward"] is recorder.forward is _C.keep_product
    assert recorder._backward_cls._forward_cls.of_a and not recorder._backward_cls._forward_cls.of_b
    assert repr(recorder) == "<class 'gg_runtime.torch.eager.GroupedMM'>"
    with pytest.raises(AttributeError, match="has no attribute 'vjp'"):
        _ = recorder.vjp


def test_an_input_that_was_written_in_between_is_noticed():
    case = case_of("ragged_m").requiring_grad()
    output = case.multiply(gg_runtime.grouped_mm)
    with torch.no_grad():
        case.mat_b.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.backward(case.gradient)


def test_lists():
    generator = torch.Generator().manual_seed(0)
    A, B, G = [], [], []
    for i, (m, n, k) in enumerate([(3, 5, 7), (16, 8, 4), (1, 9, 2), (4, 4, 0), (0, 3, 5)]):
        a, b, gradient = (cases.integers(generator, *shape).half() for shape in ((m, k), (k, n), (m, n)))
        A.append(cases.laid_out(a, "nt"[i % 2]).requires_grad_(i != 2))
        B.append(cases.laid_out(b, "tn"[i % 2]).requires_grad_(i != 1))
        G.append(gradient)
    C = gg_runtime.group_gemm(A, B)
    assert [c.requires_grad for c in C] == [True] * 5
    torch.autograd.backward(C[1:], G[1:])  # nothing came back for the first
    assert A[0].grad is None and B[0].grad is None and A[2].grad is None and B[1].grad is None
    for i in range(1, 5):
        if i != 2:
            cases.assert_same(A[i].grad, G[i].double() @ B[i].detach().double().mT, f"A[{i}]")
        if i != 1:
            cases.assert_same(B[i].grad, A[i].detach().double().mT @ G[i].double(), f"B[{i}]")
    assert not any(c.requires_grad for c in gg_runtime.group_gemm_fn([a.detach() for a in A], [b.detach() for b in B]))


@pytest.mark.parametrize("counts", [(3, 1), (1, 3), (2, 1), (0, 2)])
def test_lists_of_unlike_length_are_refused(counts):
    a, b = ([torch.randn(8, 8).half().requires_grad_() for _ in range(count)] for count in counts)
    with pytest.raises(ValueError, match=f"group_A has {counts[0]} matrices and group_B has {counts[1]}"):
        gg_runtime.group_gemm(a, b)


def test_lists_keep_what_their_gradients_need():
    A, B = [torch.ones(2, 3).half() for _ in range(2)], [torch.ones(4, 3).half().mT for _ in range(2)]
    A[0].requires_grad_()
    B[1].requires_grad_()
    C = gg_runtime.group_gemm(A, B)
    kept = [tensor for tensor in C[0].grad_fn.saved_tensors if tensor is not None]
    assert [tensor.data_ptr() for tensor in kept] == [A[1].data_ptr(), B[0].data_ptr()]
    of_a, of_b = torch.autograd.grad(C, [A[0], B[1]], [torch.ones_like(c) for c in C])
    cases.assert_same(of_a, torch.full((2, 3), 4), "A[0]")
    cases.assert_same(of_b, torch.full((3, 4), 2), "B[1]")
    assert of_b.stride() == B[1].stride()


def second_derivative_of(output, leaves, gradient):
    gradients = torch.autograd.grad(output, leaves, gradient, create_graph=True)
    return torch.autograd.grad([g.float().sum() for g in gradients], leaves[0])


@pytest.mark.parametrize("gradient_requires_grad", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_double_backward_raises_by_name(form, gradient_requires_grad):
    case = case_of(form)
    leaves = case.requiring_grad()
    gradient = case.gradient.clone().requires_grad_(gradient_requires_grad)
    output = leaves.multiply(gg_runtime.grouped_mm)
    with pytest.raises(RuntimeError, match=r"grouped_mm: .*no second derivatives.*create_graph"):
        second_derivative_of(output, leaves.inputs(), gradient)


def test_double_backward_of_lists_raises_by_name():
    A, B = [torch.ones(2, 3).half().requires_grad_()], [torch.ones(3, 4).half().requires_grad_()]
    with pytest.raises(RuntimeError, match="group_gemm: .*no second derivatives"):
        second_derivative_of(gg_runtime.group_gemm(A, B), [*A, *B], [torch.ones(2, 4).half()])


def test_gradients_that_come_as_a_batch_are_refused():
    A, B = [torch.ones(2, 3).half().requires_grad_()], [torch.ones(3, 4).half()]
    with pytest.raises(RuntimeError, match=r"group_gemm: its gradient comes as a batch, by is_grads_batched=True"):
        torch.autograd.grad(gg_runtime.group_gemm(A, B), A, [torch.ones(5, 2, 4).half()], is_grads_batched=True)
    x, w1, w2 = (torch.ones(*shape).bfloat16().requires_grad_() for shape in ((3, 8), (2, 8, 32), (2, 16, 8)))
    ends, ids = torch.tensor([1, 3], dtype=torch.int32), torch.tensor([[0], [1], [0]])
    with pytest.raises(RuntimeError, match=r"grouped_mm: .*one at a time: leave that argument out"):
        torch.autograd.functional.jacobian(lambda x: gg_runtime.grouped_mm(x, w1, offs=ends).sum(0), x, vectorize=True)
    sums = gg_runtime.fused_experts(x, w1, w2, torch.ones(3, 1), ids)
    with pytest.raises(RuntimeError, match="fused_experts: its gradient comes as a batch"):
        torch.autograd.grad(sums, [x, w1], torch.ones(2, 3, 8).bfloat16(), is_grads_batched=True)


def test_create_graph_alone_gives_the_gradients():
    case = case_of("ragged_m")
    leaves = case.requiring_grad()
    output = leaves.multiply(gg_runtime.grouped_mm)
    made = torch.autograd.grad(output, leaves.inputs(), case.gradient, create_graph=True)
    cases.assert_exact(case, output.detach(), [gradient.detach() for gradient in made])


ROWS = torch.zeros(45, dtype=torch.int32)
ONE = torch.ones(1)
REFUSED = {
    "activation": ("ragged_m", lambda case: {"activation": "silu"}, "apply the activation with torch"),
    "a_index": ("ragged_m", lambda case: {"a_index": ROWS}, r"mat_a\[a_index\]"),
    "b_index": ("ragged_k", lambda case: {"b_index": ROWS}, r"mat_b\[b_index\]"),
    "counts": ("batched", lambda case: {"counts": case_of("ragged_m").offs}, "torch.where"),
    "out": ("ragged_m", lambda case: {"out": torch.empty(45, 40).bfloat16()}, "leave it out"),
    "alpha": ("ragged_k", lambda case: {"alpha": 0.5}, "multiply the output with torch"),
    "beta": ("ragged_k", lambda case: {"beta": ONE, "out": torch.empty(4, 16, 40).bfloat16()}, "leave it out"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("which", ["mat_a", "mat_b"])
def test_what_has_no_gradient_says_what_to_do(name, which):
    form, others, advice = REFUSED[name]
    case = case_of(form)
    case = case._replace(**{which: getattr(case, which).requires_grad_()})

    def multiply(*arguments, **named):
        return gg_runtime.grouped_mm(*arguments, **named, **others(case))

    said = rf"grouped_mm: {which} requires grad, and \w+ has no gradients.*{advice}.*{which}\.detach\(\)"
    with pytest.raises(RuntimeError, match=said):
        case.multiply(multiply)
    with torch.no_grad():
        case.multiply(multiply)


def test_alpha_and_beta_that_change_nothing_are_not_refused():
    case = case_of("ragged_k")
    leaves = case.requiring_grad()
    gg_runtime.grouped_mm(leaves.mat_a, leaves.mat_b, offs=case.offs, alpha=1, beta=0).backward(case.gradient)
    cases.assert_same(leaves.mat_a.grad, cases.exact(case)[1][0], "mat_a")


def test_a_float32_output_has_no_gradient():
    case = case_of("ragged_k").requiring_grad()
    with pytest.raises(RuntimeError, match="mat_a requires grad, and a product of bfloat16 that gives float32 has no"):
        gg_runtime.grouped_mm(case.mat_a, case.mat_b, offs=case.offs, out_dtype=torch.float32)
    C = gg_runtime.grouped_mm(case.mat_a, case.mat_b, offs=case.offs, out_dtype="bfloat16")
    assert C.requires_grad


def test_fp8_has_no_gradient():
    a, b = (torch.zeros(shape).to(torch.float8_e4m3fn) for shape in ((45, 24), (4, 24, 40)))
    offs = case_of("ragged_m").offs
    with pytest.raises(RuntimeError, match="grouped_mm: mat_b requires grad, and a product of float8_e4m3fn"):
        gg_runtime.grouped_mm(a, b.clone().requires_grad_(), offs=offs)
    scale = torch.ones(4, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"grouped_mm: scale_b requires grad, and scale_b has no gradients.*detach"):
        gg_runtime.grouped_mm(a, b, offs=offs, scale_b=scale)
    with pytest.raises(RuntimeError, match=r"group_gemm: scale_b requires grad"):
        gg_runtime.group_gemm(list(a[None]), list(b[:1]), scale_b=scale[:1].detach().requires_grad_())
    with pytest.raises(RuntimeError, match=r"group_gemm: A\[0\] requires grad, and a product of float8_e4m3fn"):
        gg_runtime.group_gemm([a.clone().requires_grad_()], [b[0]])


def test_lists_with_out_are_refused_by_name():
    A, B = [torch.ones(2, 3).half()], [torch.ones(3, 4).half().requires_grad_()]
    with pytest.raises(RuntimeError, match=r"group_gemm: B\[0\] requires grad, and out has no gradients"):
        gg_runtime.group_gemm(A, B, out=[torch.empty(2, 4).half()])


@pytest.mark.parametrize("which", [0, 1], ids="AB")
def test_plans_record_nothing_and_say_so(which):
    operands = [torch.ones(4, 8).half(), torch.ones(2, 8).half()], [torch.ones(8, 16).half() for _ in range(2)]
    operands[which][1].requires_grad_()
    name = rf"{'AB'[which]}\[1\]"
    message = rf"^Plan: {name} requires grad.*torch\.no_grad\(\).*{name}\.detach\(\)"
    with pytest.raises(RuntimeError, match=message):
        gg_runtime.Plan(*operands)
    with torch.no_grad():
        gg_runtime.Plan(*operands)
    case = case_of("ragged_m").requiring_grad()
    with pytest.raises(RuntimeError, match="^Plan: mat_a requires grad"):
        gg_runtime.Plan(case.mat_a, case.mat_b, offs=case.offs)


def test_explain_records_nothing_and_refuses_nothing():
    A, B = [torch.ones(4, 8).half().requires_grad_()], [torch.ones(8, 16).half()]
    h200 = {"sm": 90, "multiprocessors": 132, "shared_bytes_per_block": 232448}
    assert gg_runtime.explain(A, B, device=h200).variant


def test_wrong_arguments_raise_what_they_raise_without_gradients():
    case = case_of("ragged_m").requiring_grad()
    with pytest.raises(ValueError, match="grouped_mm: .*offs"):
        gg_runtime.grouped_mm(case.mat_a, case.mat_b)
    with pytest.raises(TypeError, match=r"grouped_mm: mat_b .*float16"):
        gg_runtime.grouped_mm(case.mat_a, case.mat_b.half(), offs=case.offs)
    with pytest.raises(TypeError, match="grouped_mm: mat_a"):
        gg_runtime.grouped_mm(object(), case.mat_b, offs=case.offs)
    with pytest.raises(ValueError, match="group_gemm: group_A has 1 matrices and group_B has 2"):
        gg_runtime.group_gemm([case.mat_a], [case.mat_b[0], case.mat_b[1]])


def test_eager_calls_enter_no_dispatcher():
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), named=None):
            seen.append(str(function))
            return function(*arguments, **(named or {}))

    case = case_of("ragged_m", bias=True)
    with Watch():
        gradients_of(case)
    assert seen and not [name for name in seen if "gg_runtime" in name]


def negated_by_conjugation(rows, columns):
    """The imaginary part of a conjugate, in float16: torch negates it when it is read."""
    pairs = torch.arange(2.0 * rows * columns).reshape(rows, columns, 2).half()
    return torch.view_as_complex(pairs).conj().imag


@pytest.mark.parametrize("transposed", [False, True])
def test_a_lazily_negated_tensor_is_refused(transposed):
    def make(rows, columns):
        return negated_by_conjugation(columns, rows).mT if transposed else negated_by_conjugation(rows, columns)

    negated = make(4, 8)
    assert negated.is_neg()
    A, B = [negated, torch.ones(2, 8).half()], [torch.ones(8, 16).half() for _ in range(2)]
    with pytest.raises(TypeError, match=r"A\[0\] has torch's negative bit set.*A\[0\]\.resolve_neg\(\)"):
        gg_runtime.group_gemm(A, B)
    (c, _) = gg_runtime.group_gemm([negated.resolve_neg(), A[1]], B)
    assert torch.equal(c, negated.resolve_neg() @ B[0])
    rows, stack, offs = torch.ones(12, 8).half(), torch.ones(3, 8, 16).half(), torch.tensor([4, 4, 12]).int()
    with pytest.raises(TypeError, match=r"mat_a has torch's negative bit set"):
        gg_runtime.grouped_mm(make(12, 8), stack, offs=offs)
    with pytest.raises(TypeError, match=r"out has torch's negative bit set"):
        gg_runtime.grouped_mm(rows, stack, offs=offs, out=make(12, 16))


def test_a_preactivation_is_not_lost():
    a, b, offs = torch.ones(20, 9).half().requires_grad_(), torch.ones(2, 9, 8).half(), torch.tensor([4, 18]).int()
    with pytest.raises((RuntimeError, ValueError), match="preactivation"):
        gg_runtime.grouped_mm(a, b, offs=offs, preactivation=torch.zeros(20, 8).half())
