"""What torch keeps beside a tensor's memory, and kernels do not see: gradients to record, a lazy negation."""

import pytest

torch = pytest.importorskip("torch")

import gg_runtime  # noqa: E402

E, ROWS, K, N = 3, 12, 8, 16
OFFS = torch.tensor([4, 4, 12], dtype=torch.int32)


def lists():
    return [torch.ones(4, K).half(), torch.ones(2, K).half()], [torch.ones(K, N).half() for _ in range(2)]


def ragged() -> dict:
    return {"mat_a": torch.ones(ROWS, K).half(), "mat_b": torch.ones(E, K, N).half(), "offs": OFFS}


def grouped_mm(arguments: dict):
    a, b, *_ = arguments.values()
    return gg_runtime.grouped_mm(a, b, **{name: value for name, value in arguments.items() if name[:4] != "mat_"})


@pytest.mark.parametrize("call", [gg_runtime.group_gemm, gg_runtime.Plan], ids=["group_gemm", "Plan"])
@pytest.mark.parametrize("which", [0, 1], ids="AB")
def test_lists_name_the_input_whose_gradient_would_be_lost(call, which):
    operands = lists()
    operands[which][1].requires_grad_()
    name = rf"{'AB'[which]}\[1\]"
    message = rf"group_gemm: {name} requires grad.*torch\.no_grad\(\).*{name}\.detach\(\)"
    with pytest.raises(RuntimeError, match=message):
        call(*operands)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            call(*operands)
    operands[which][1] = operands[which][1].detach()
    call(*operands)


@pytest.mark.parametrize("which", ["mat_a", "mat_b", "bias"])
def test_grouped_mm_names_the_input_whose_gradient_would_be_lost(which):
    arguments = ragged() | {"bias": torch.ones(E, N).half()}
    arguments[which] = torch.nn.Parameter(arguments[which])
    with pytest.raises(RuntimeError, match=rf"grouped_mm: {which} requires grad.*{which}\.detach\(\)"):
        grouped_mm(arguments)
    with torch.no_grad():
        assert not grouped_mm(arguments).requires_grad


def test_scales_have_gradients_too():
    arguments = ragged()
    arguments |= {name: arguments[name].to(torch.float8_e4m3fn) for name in ("mat_a", "mat_b")}
    with pytest.raises(RuntimeError, match="grouped_mm: scale_b requires grad"):
        grouped_mm(arguments | {"scale_b": torch.ones(E, requires_grad=True)})


def test_explain_records_nothing_and_refuses_nothing():
    A, B = lists()
    A[0].requires_grad_()
    h200 = {"sm": 90, "multiprocessors": 132, "shared_bytes_per_block": 232448}
    assert gg_runtime.explain(A, B, device=h200).variant


def negated_by_conjugation(rows, columns):
    """The imaginary part of a conjugate, in float16: torch negates it when it is read."""
    pairs = torch.arange(2.0 * rows * columns).reshape(rows, columns, 2).half()
    return torch.view_as_complex(pairs).conj().imag


@pytest.mark.parametrize("transposed", [False, True])
def test_a_lazily_negated_tensor_is_refused(transposed):
    def make(rows, columns):
        return negated_by_conjugation(columns, rows).mT if transposed else negated_by_conjugation(rows, columns)

    negated = make(4, K)
    assert negated.is_neg()
    A, B = lists()
    with pytest.raises(TypeError, match=r"A\[0\] has torch's negative bit set.*A\[0\]\.resolve_neg\(\)"):
        gg_runtime.group_gemm([negated, A[1]], B)
    (c, _) = gg_runtime.group_gemm([negated.resolve_neg(), A[1]], B)
    assert torch.equal(c, negated.resolve_neg() @ B[0])
    with pytest.raises(TypeError, match=r"mat_a has torch's negative bit set"):
        grouped_mm(ragged() | {"mat_a": make(ROWS, K)})
    with pytest.raises(TypeError, match=r"out has torch's negative bit set"):
        grouped_mm(ragged() | {"out": make(ROWS, N)})
