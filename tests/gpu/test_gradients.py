"""Gradients on the GPU: exact where integers make them so, close to float64 on large ones, the same bits each time."""

import pytest

torch = pytest.importorskip("torch")

import gg_runtime  # noqa: E402
import gg_runtime.torch  # noqa: E402  # the ops by their names
import gradient_cases as cases  # noqa: E402
from gradient_cases import FORMS  # noqa: E402
from oracle import RELATIVE_SLACK  # noqa: E402

DTYPES = [torch.bfloat16, torch.float16]
WITH_BIAS = ["ragged_m", "batched"]
# total, M, K, N, E: whole tiles of TMA kernels, then sizes that TMA cannot take.
LARGE = {"whole": (1536, 256, 512, 384, 6), "odd": (1531, 123, 301, 217, 5)}


def gradients_of(case: cases.Case) -> tuple:
    leaves = case.requiring_grad()
    output = leaves.multiply(gg_runtime.grouped_mm)
    output.backward(case.gradient)
    return output.detach(), [leaf.grad for leaf in leaves.inputs()]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layouts", ["nn", "nt", "tn", "tt", "ss"])
@pytest.mark.parametrize("form", FORMS)
def test_gradients_are_those_of_a_loop_in_float64(form, layouts, dtype):
    case = cases.make(form, dtype=dtype, device="cuda", layouts=layouts, bias=form in WITH_BIAS)
    cases.assert_exact(case, *gradients_of(case))


@pytest.mark.parametrize("ends", [[0, 0, 0, 0], [45, 45, 45, 45], [-3, 9, 4, 99], [45, 0, 0, 7]], ids=str)
@pytest.mark.parametrize("form", ["ragged_m", "ragged_n", "ragged_k"])
def test_gradients_of_any_ends(form, ends):
    case = cases.make(form, dtype=torch.bfloat16, device="cuda", ends=ends, bias=form in WITH_BIAS)
    cases.assert_exact(case, *gradients_of(case))


def test_an_expanded_gradient():
    case = cases.make("ragged_m", dtype=torch.bfloat16, device="cuda")
    case = case._replace(gradient=torch.ones((), device="cuda", dtype=torch.bfloat16).expand(45, 40))
    cases.assert_exact(case, *gradients_of(case))


def large_case(form: str, sizes: str, layouts: str = "nn") -> cases.Case:
    total, m, k, n, groups = LARGE[sizes]
    a, b, out = {
        "ragged_m": ((total, k), (groups, k, n), (total, n)),
        "ragged_n": ((groups, m, k), (k, total), (m, total)),
        "ragged_k": ((m, total), (total, n), (groups, m, n)),
        "batched": ((groups, m, k), (groups, k, n), (groups, m, n)),
    }[form]
    a, b, gradient = (torch.randn(shape, device="cuda").bfloat16() for shape in (a, b, out))
    ends = torch.rand(groups, device="cuda").sort().values * total
    return cases.Case(
        cases.laid_out(a, layouts[0]),
        cases.laid_out(b, layouts[1]),
        None if form == "batched" else ends.int(),
        torch.randn(groups, n, device="cuda").bfloat16() if form in WITH_BIAS else None,
        gradient,
    )


def magnitudes(case: cases.Case) -> cases.Case:
    return case._replace(
        mat_a=case.mat_a.abs(), mat_b=case.mat_b.abs(), gradient=case.gradient.abs(),
        bias=None if case.bias is None else case.bias.abs(),
    )  # fmt: skip


@pytest.mark.parametrize("layouts", ["nn", "nt", "tn"])
@pytest.mark.parametrize("sizes", LARGE)
@pytest.mark.parametrize("form", FORMS)
def test_large_gradients_are_close_to_float64(form, sizes, layouts):
    """Summed in float32 and rounded once: half a unit in the last place, and what the order of summation may change."""
    case = large_case(form, sizes, layouts)
    _, found = gradients_of(case)
    _, expected = cases.exact(case)
    _, scale = cases.exact(magnitudes(case))
    for name, gradient, exact, magnitude in zip(("mat_a", "mat_b", "bias"), found, expected, scale):
        excess = (gradient.double() - exact).abs() - (2.0**-8 * exact.abs() + RELATIVE_SLACK * magnitude)
        assert excess.max() <= 0, f"gradient of {name} is off by {excess.max().item()} too much"


@pytest.mark.parametrize("sizes", LARGE)
@pytest.mark.parametrize("form", FORMS)
def test_gradients_have_the_same_bits_each_time(form, sizes):
    case = large_case(form, sizes)
    _, first = gradients_of(case)
    for attempt in range(5):
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
            _, again = gradients_of(case)
        torch.cuda.synchronize()
        assert all(torch.equal(x, y) for x, y in zip(first, again)), attempt


@pytest.mark.parametrize("form", FORMS)
def test_forward_and_backward_in_a_cuda_graph(form):
    """Each replay takes the values, and the ends, of its moment."""
    case = large_case(form, "whole")
    leaves = case.requiring_grad()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            torch.autograd.grad(leaves.multiply(gg_runtime.grouped_mm), leaves.inputs(), case.gradient)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = leaves.multiply(gg_runtime.grouped_mm)
        made = torch.autograd.grad(output, leaves.inputs(), case.gradient)
    for _ in range(3):
        other = large_case(form, "whole")
        with torch.no_grad():
            for mine, new in zip((*leaves.inputs(), case.gradient), (*other.inputs(), other.gradient)):
                mine.copy_(new)
            if case.offs is not None:
                case.offs.copy_(other.offs)
        for gradient in made:
            gradient.fill_(float("nan"))
        graph.replay()
        expected, of_inputs = gradients_of(other)
        assert torch.equal(output, expected)
        assert all(torch.equal(x, y) for x, y in zip(made, of_inputs))


def test_lists():
    sizes = [(300, 128, 64), (16, 8, 4), (1, 9, 2), (64, 256, 192)]
    A = [torch.randint(-2, 3, (m, k), device="cuda").half().requires_grad_() for m, n, k in sizes]
    B = [torch.randint(-2, 3, (n, k), device="cuda").half().mT.requires_grad_() for m, n, k in sizes]
    G = [torch.randint(-1, 2, (m, n), device="cuda").half() for m, n, k in sizes]
    torch.autograd.backward(gg_runtime.group_gemm(A, B), G)
    for a, b, gradient in zip(A, B, G):
        cases.assert_same(a.grad, gradient.double() @ b.detach().double().mT, "A")
        cases.assert_same(b.grad, a.detach().double().mT @ gradient.double(), "B")


def test_a_step_of_training_agrees_with_torch():
    """Two layers by hand and by torch.nn.functional.grouped_mm, from the same weights."""
    torch.manual_seed(0)
    x = torch.randn(512, 256, device="cuda").bfloat16()
    weights = [torch.randn(4, n, k, device="cuda").bfloat16() * k**-0.5 for n, k in ((384, 256), (256, 384))]
    ends = torch.tensor([100, 100, 400, 512], dtype=torch.int32, device="cuda")
    made = []
    for multiply in (gg_runtime.grouped_mm, torch.nn.functional.grouped_mm):
        w1, w2 = (w.clone().requires_grad_() for w in weights)
        h = torch.nn.functional.silu(multiply(x, w1.mT, offs=ends))
        (multiply(h, w2.mT, offs=ends).float() ** 2).mean().backward()
        made.append((w1.grad, w2.grad))
    for ours, theirs in zip(*made):
        assert ours.stride() == theirs.stride()
        torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-2 * theirs.abs().max().item())


@pytest.mark.parametrize("layouts", ["nn", "tt"])
@pytest.mark.parametrize("form", FORMS)
def test_outputs_lie_as_torch_is_told(form, layouts):
    """Shapes, strides and dtypes of the op's fake, which compiled programs count on."""
    case = cases.make(form, dtype=torch.bfloat16, device="cuda", layouts=layouts)
    arguments = (case.mat_a, case.mat_b, case.offs)
    torch.library.opcheck(torch.ops.gg_runtime.grouped_mm.default, arguments, test_utils="test_faketensor")
