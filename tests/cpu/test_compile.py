"""torch.compile and torch.export of this library's functions on the CPU: whole graphs, of any sizes."""

import functools

import pytest

torch = pytest.importorskip("torch")

import gg_runtime  # noqa: E402
import gg_runtime.torch  # noqa: E402  # the ops by their names
import gradient_cases as cases  # noqa: E402
from gradient_cases import FORMS  # noqa: E402
from processes import run_python  # noqa: E402

OPS = torch.ops.gg_runtime
WITH_BIAS = ["ragged_m", "batched"]


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(function, **options):
    return torch.compile(function, fullgraph=True, backend="aot_eager", **options)


def case_of(form: str, **options) -> cases.Case:
    return cases.make(form, dtype=torch.bfloat16, device="cpu", **options)


@pytest.mark.parametrize("layouts", ["nn", "nt", "ts"])
@pytest.mark.parametrize("form", FORMS)
def test_one_graph_forward_and_backward(form, layouts):
    case = case_of(form, layouts=layouts, bias=form in WITH_BIAS)
    leaves = case.requiring_grad()

    @compiled
    def doubled(mat_a, mat_b, offs, bias):
        output = leaves._replace(mat_a=mat_a, mat_b=mat_b, offs=offs, bias=bias).multiply(gg_runtime.grouped_mm)
        return output * 2

    output = doubled(leaves.mat_a, leaves.mat_b, leaves.offs, leaves.bias)
    (output / 2).backward(case.gradient)
    cases.assert_exact(case, output.detach() / 2, [leaf.grad for leaf in leaves.inputs()])


def test_the_graph_has_the_op_by_name():
    graphs = []

    def keep(graph, _):
        graphs.append(graph)
        return graph

    case = case_of("ragged_m")
    torch.compile(lambda: case.multiply(gg_runtime.grouped_mm), fullgraph=True, backend=keep)()
    assert [node.target for node in graphs[0].graph.nodes if node.op == "call_function"] == [OPS.grouped_mm.default]


def test_the_library_s_function_is_compiled_by_itself():
    case = case_of("ragged_m")
    found = compiled(gg_runtime.grouped_mm)(case.mat_a, case.mat_b, offs=case.offs)
    cases.assert_same(found, cases.exact(case)[0], "output")


@pytest.mark.parametrize("form", FORMS)
def test_sizes_change_without_another_compilation(form):
    @compiled
    def multiply(mat_a, mat_b, offs):
        given = {} if offs is None else {"offs": offs}
        return gg_runtime.grouped_mm(mat_a, mat_b, **given)

    with torch._dynamo.config.patch(error_on_recompile=True):
        for total, m in ((45, 16), (50, 24), (64, 40), (3, 5)):
            generator = torch.Generator().manual_seed(total)
            a, b, out = (cases.integers(generator, *shape).bfloat16() for shape in cases.shapes(form, total, m))
            offs = None if form == "batched" else torch.tensor([1, 3, 3, total], dtype=torch.int32)
            dynamic = {"ragged_m": [(a, 0)], "ragged_n": [(a, 1), (b, 1)], "ragged_k": [(a, 0), (a, 1), (b, 0)],
                       "batched": [(a, 1)]}[form]  # fmt: skip
            for tensor, dimension in dynamic:
                torch._dynamo.mark_dynamic(tensor, dimension)
            case = cases.Case(a.requires_grad_(), b.requires_grad_(), offs, None, out)
            output = multiply(a, b, offs)
            output.backward(out)
            cases.assert_exact(case, output.detach(), [a.grad, b.grad])


def test_lists_in_one_graph():
    generator = torch.Generator().manual_seed(0)
    A = [cases.integers(generator, 4, 8).half().requires_grad_() for _ in range(3)]
    B = [cases.laid_out(cases.integers(generator, 8, 5).half(), "t").requires_grad_() for _ in range(3)]
    C = compiled(lambda: gg_runtime.group_gemm(A, B))()
    out = [torch.empty(4, 5).half() for _ in A]
    with torch.no_grad():
        assert compiled(lambda: gg_runtime.group_gemm(A, B, out=out))()[0] is not None
        assert compiled(lambda: gg_runtime.group_gemm([], []))() == []
    for a, b, c, o in zip(A, B, C, out):
        cases.assert_same(c.detach(), a.detach().double() @ b.detach().double(), "product")
        assert torch.equal(c, o)
    torch.autograd.backward([C[0], C[2]], [torch.ones_like(C[0]), torch.ones_like(C[2])])
    assert torch.equal(A[0].grad, torch.ones(4, 5).half() @ B[0].mT)
    assert torch.equal(B[2].grad, A[2].mT @ torch.ones(4, 5).half())
    assert A[1].grad is None or not A[1].grad.any()


def test_out_and_preactivation_are_written_in_the_graph():
    case = case_of("ragged_m")
    a = case.mat_a.nan_to_num()
    out, kept = torch.empty(45, 20).bfloat16(), torch.empty(45, 40).bfloat16()

    @compiled
    def up(a, b, offs, out, kept):
        h = gg_runtime.grouped_mm(a, b, offs=offs, activation="swiglu", out=out, preactivation=kept)
        return h + 1, kept * 2

    plus_one, twice = up(a, case.mat_b, case.offs, out, kept)
    wanted = torch.empty_like(kept)
    h = gg_runtime.grouped_mm(a, case.mat_b, offs=case.offs, activation="swiglu", preactivation=wanted)
    assert torch.equal(out, h) and torch.equal(kept, wanted)
    assert torch.equal(plus_one, h + 1) and torch.equal(twice, wanted * 2)

    @compiled
    def of_preactivation(a, b, offs, kept):
        return gg_runtime.grouped_mm(a, b, offs=offs, activation="swiglu", preactivation=kept)

    assert torch.equal(of_preactivation(a, case.mat_b, case.offs, kept.zero_()), h) and torch.equal(kept, wanted)


@pytest.mark.parametrize("beta", [1.0, torch.tensor([0.5])], ids=["a number", "a tensor"])
def test_main_gradients_accumulate_in_the_graph(beta):
    case = case_of("ragged_k")
    main = torch.ones(4, 16, 40)
    compiled(lambda main: gg_runtime.grouped_mm(case.mat_a, case.mat_b, offs=case.offs, out=main, beta=beta))(main)
    assert torch.equal(main, (cases.exact(case)[0] + float(beta)).float())
    with pytest.raises(Exception, match="beta is given without out"):
        compiled(lambda: gg_runtime.grouped_mm(case.mat_a, case.mat_b, offs=case.offs, beta=1.0))()


def test_all_arguments_go_through():
    case = case_of("ragged_m", bias=True)
    index = torch.tensor([3, -1, 44, 0, 7] * 9)
    given = {"bias": case.bias, "batch_invariant": True, "a_index": index, "activation": "gelu"}
    given["out_dtype"] = "bfloat16"
    found = compiled(lambda: gg_runtime.grouped_mm(case.mat_a.nan_to_num(), case.mat_b, offs=case.offs, **given))()
    wanted = gg_runtime.grouped_mm(case.mat_a.nan_to_num(), case.mat_b, offs=case.offs, **given)
    assert torch.equal(found, wanted)
    k = case_of("ragged_k")
    given = {"b_index": index, "alpha": torch.tensor([0.5]), "out_dtype": torch.float32}
    multiply = lambda: gg_runtime.grouped_mm(k.mat_a, k.mat_b.nan_to_num(), offs=k.offs, **given)  # noqa: E731
    assert torch.equal(compiled(multiply)(), multiply())
    a, b = (torch.ones(shape).to(torch.float8_e4m3fn) for shape in ((45, 24), (4, 24, 40)))
    given = {"scale_a": torch.tensor([2.0]), "scale_b": torch.tensor([1.0, 2, 3, 4])}
    multiply = lambda: gg_runtime.grouped_mm(a, b, offs=case.offs, **given)  # noqa: E731
    assert torch.equal(compiled(multiply)(), multiply())


def layer(x, ids, weights, w1, w2):
    """A layer of experts, by parts."""
    routing = gg_runtime.route(ids, 4)
    h = gg_runtime.grouped_mm(x, w1.mT, offs=routing.ends, a_index=routing.token, activation="swiglu")
    y = gg_runtime.grouped_mm(h, w2.mT, offs=routing.ends)
    return gg_runtime.combine(y, routing.inverse, weights, scale=0.5) + x


def layer_operands():
    generator = torch.Generator().manual_seed(0)
    x, w1, w2 = (torch.randn(shape, generator=generator).bfloat16() for shape in ((10, 24), (4, 32, 24), (4, 24, 16)))
    return x, torch.randint(0, 5, (10, 2), generator=generator), torch.rand(10, 2, generator=generator), w1, w2


def test_a_layer_in_one_graph():
    operands = layer_operands()
    x, ids, weights, w1, w2 = operands
    assert torch.equal(compiled(layer)(*operands), layer(*operands))

    def fused(x, out=None):
        return gg_runtime.fused_experts(x, w1.mT, w2.mT, weights, ids, scale=0.5, out=out) * 1

    out = torch.empty_like(x)
    assert torch.equal(compiled(fused)(x), fused(x))
    assert torch.equal(compiled(fused)(x, out), fused(x)) and torch.equal(out, fused(x))
    y = gg_runtime.grouped_mm(x, w1.mT, offs=torch.tensor([10, 10, 10, 10], dtype=torch.int32))
    inverse = gg_runtime.route(ids, 4).inverse
    with pytest.raises(RuntimeError, match=r"combine: y requires grad, and gradients are not recorded.*y\.detach"):
        compiled(lambda y: gg_runtime.combine(y, inverse) * 1)(y.requires_grad_())


def test_an_output_on_another_device_is_refused_in_the_graph_too():
    y, inverse = torch.ones(8, 16).bfloat16(), torch.arange(8, dtype=torch.int32).reshape(4, 2)
    out = torch.empty(4, 16, device="meta").bfloat16()
    with pytest.raises(RuntimeError, match="ValueError.*combine: out is on meta but the inputs are on cpu; move all"):
        compiled(lambda y, out: gg_runtime.combine(y, inverse, out=out))(y, out)


@pytest.mark.parametrize("name", ["float", "float64", "nothing"])
def test_a_dtype_that_products_do_not_have_is_refused_in_the_graph_too(name):
    case = case_of("ragged_m")
    with pytest.raises(
        RuntimeError, match=f"ValueError.*grouped_mm: out_dtype is {name}; float16, bfloat16, float32 or"
    ):
        compiled(lambda a: gg_runtime.grouped_mm(a, case.mat_b, offs=case.offs, out_dtype=name))(case.mat_a)


def test_an_output_of_a_list_that_gradients_are_recorded_of_is_refused_in_the_graph_too():
    a, b, out = (
        torch.ones(4, 8).bfloat16(),
        torch.ones(8, 16).bfloat16().requires_grad_(),
        torch.empty(4, 16).bfloat16(),
    )
    with pytest.raises(RuntimeError, match=r"group_gemm: B\[0\] requires grad, and out has no gradients"):
        compiled(lambda a, b: gg_runtime.group_gemm([a], [b], out=[out]))(a, b)
    with torch.no_grad():
        assert torch.equal(compiled(lambda a, b: gg_runtime.group_gemm([a], [b], out=[out]))(a, b)[0], a @ b)


REFUSED = {
    "activation": ({"activation": "silu"}, "mat_b requires grad, and activation has no gradients"),
    "out": ({"out": torch.empty(45, 40).bfloat16()}, "mat_b requires grad, and out has no gradients"),
    "preactivation": (
        {"activation": "silu", "preactivation": torch.empty(45, 40).bfloat16()},
        "mat_b requires grad, and activation has no gradients",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_gradient_is_refused_in_the_graph_too(name):
    others, said = REFUSED[name]
    case = case_of("ragged_m")
    b = case.mat_b.requires_grad_()
    with pytest.raises(RuntimeError, match=f"grouped_mm: {said}"):
        compiled(lambda a, b: gg_runtime.grouped_mm(a, b, offs=case.offs, **others) * 1)(case.mat_a, b)


@pytest.mark.parametrize(
    ("out", "kind", "said"),
    [
        (torch.empty(3, 4, 16).bfloat16(), "ValueError", r"out has shape \[3, 4, 16\]; \[4, 16\] is needed"),
        (torch.empty(4, 16), "TypeError", "out has dtype float32; bfloat16 is needed"),
    ],
    ids=["shape", "dtype"],
)
def test_an_output_that_does_not_fit_is_refused_in_the_graph_too(out, kind, said):
    """torch tells the error in one of its own where a whole graph is asked for."""
    y, inverse = torch.ones(8, 16).bfloat16(), torch.arange(8, dtype=torch.int32).reshape(4, 2)
    with pytest.raises(RuntimeError, match=f"{kind}.*combine: {said}"):
        compiled(lambda y, out: gg_runtime.combine(y, inverse, out=out))(y, out)
    A, B = [torch.ones(4, 8).bfloat16()], [torch.ones(8, 16).bfloat16()]
    with pytest.raises(RuntimeError, match=f"{kind}.*group_gemm: {said.replace('out', 'out.0.', 1)}"):
        compiled(lambda a, out: gg_runtime.group_gemm([a], B, out=[out], out_dtype=torch.bfloat16))(A[0], out)


def test_one_output_for_two_products_and_what_is_no_list_are_refused_in_the_graph_too():
    a, b = torch.ones(4, 8).bfloat16(), torch.ones(8, 16).bfloat16()
    with pytest.raises(RuntimeError, match=r"ValueError.*group_gemm: out\[1\] shares memory with out\[0\]"):
        compiled(lambda out: gg_runtime.group_gemm([a, a], [b, 2 * b], out=[out, out]))(torch.empty(4, 16).bfloat16())
    with pytest.raises(RuntimeError, match="TypeError.*group_gemm: group_A is no list"):
        compiled(lambda a: gg_runtime.group_gemm(a, [b]))(a[None])
    with pytest.raises(RuntimeError, match="TypeError.*group_gemm: out is no list"):
        compiled(lambda out: gg_runtime.group_gemm([a], [b], out=out))(torch.empty(4, 16).bfloat16())
    with pytest.raises(RuntimeError, match="ValueError.*group_gemm: out has 1 matrices, and there are 0 products"):
        compiled(lambda out: gg_runtime.group_gemm([], [], out=[out]))(torch.empty(4, 16).bfloat16())


@pytest.mark.parametrize("of_a", [True, False])
def test_scales_are_lists_of_both_in_the_graph_too(of_a):
    a, b, one = torch.ones(4, 16).to(torch.float8_e4m3fn), torch.ones(16, 16).to(torch.float8_e4m3fn), torch.ones(())
    scales = {"scale_a": [torch.ones(4)], "scale_b": one} if of_a else {"scale_a": one, "scale_b": [torch.ones(16)]}
    with pytest.raises(RuntimeError, match=f"ValueError.*group_gemm: scale_{'b' if of_a else 'a'} is no list"):
        compiled(lambda a: gg_runtime.group_gemm([a], [b], **scales))(a)


@pytest.mark.parametrize("given", [{"activation": torch.nn.functional.silu}, {"activation": "silu", "gate_up": 1}])
def test_what_has_a_name_is_named_in_the_graph_too(given):
    case = case_of("ragged_m")
    name = "gate_up" if "gate_up" in given else "activation"
    with pytest.raises(RuntimeError, match=f"TypeError.*grouped_mm: {name} is an? [a-z]*; its name is needed"):
        compiled(lambda a: gg_runtime.grouped_mm(a, case.mat_b, offs=case.offs, **given))(case.mat_a.detach())


def test_sizes_that_follow_from_others_stay_unknown_in_the_graph():
    w1, w2 = torch.ones(4, 32, 64).bfloat16(), torch.ones(4, 32, 32).bfloat16()

    @compiled
    def layer(x, weights, ids):
        ends, *_ = gg_runtime.route(ids, x.shape[0])
        return gg_runtime.fused_experts(x, w1, w2, weights, ids, max_rows=2 * x.shape[0]), ends

    with torch._dynamo.config.patch(error_on_recompile=True):
        for tokens in (6, 7, 20):
            given = torch.ones(tokens, 32).bfloat16(), torch.rand(tokens, 2), torch.randint(0, 4, (tokens, 2))
            for tensor in given:
                torch._dynamo.mark_dynamic(tensor, 0)
            sums, ends = layer(*given)
            assert torch.equal(sums, gg_runtime.fused_experts(given[0], w1, w2, *given[1:]))
            assert ends.shape == (tokens,) and ends[-1] == 2 * tokens


@pytest.mark.parametrize("name", ["bfloat16", "torch.bfloat16"])
def test_a_dtype_may_be_named_in_the_graph(name):
    case = case_of("ragged_m")

    def product(a, b):
        return gg_runtime.grouped_mm(a, b, offs=case.offs, out_dtype=name) * 1

    given = case.mat_a.detach(), case.mat_b.detach()
    assert torch.equal(compiled(product)(*given), product(*given))


def samples(form: str):
    """Operands that are compact, and permuted ones that are dense."""
    for layouts in ("nn", "tt"):
        for bias in (False, form in WITH_BIAS):
            case = case_of(form, layouts=layouts, bias=bias)
            yield case._replace(
                mat_a=case.mat_a.nan_to_num().requires_grad_(), mat_b=case.mat_b.nan_to_num().requires_grad_()
            )


@pytest.mark.parametrize("form", FORMS)
def test_opcheck_of_products(form):
    for case in samples(form):
        torch.library.opcheck(OPS.grouped_mm.default, (case.mat_a, case.mat_b, case.offs, case.bias))
    if form == "ragged_k":
        out = torch.zeros(4, 16, 40)
        plain = case.mat_a.detach(), case.mat_b.detach(), case.offs
        torch.library.opcheck(OPS.grouped_mm_into.default, (out, *plain), {"beta": 1.0})


def test_opcheck_of_the_others():
    x, ids, weights, w1, w2 = layer_operands()
    A, B = [torch.ones(2, 3).half().requires_grad_()], [torch.ones(4, 3).half().mT.requires_grad_()]
    torch.library.opcheck(OPS.group_gemm.default, (A, B))
    torch.library.opcheck(OPS.route.default, (ids, 4))
    _, _, _, inverse = gg_runtime.route(ids, 4)
    torch.library.opcheck(OPS.combine.default, (torch.randn(20, 24).half(), inverse, weights))
    torch.library.opcheck(OPS.fused_experts.default, (x, w1.mT, w2.mT, weights, ids))
    for rows in (torch.randn(20, 300).half(), torch.randn(300, 20).bfloat16().mT):
        torch.library.opcheck(OPS.quantize_1x128.default, (rows,))


def test_rows_are_quantized_in_the_graph():
    w = torch.randn(3, 32, 300).to(torch.float8_e4m3fn)
    ends, w_scales = torch.tensor([4, 4, 20], dtype=torch.int32), torch.rand(3, 1, 3)

    def products(x):
        q, scales = gg_runtime.quantize_1x128(x * 2)
        return gg_runtime.grouped_mm(q, w.mT, offs=ends, scale_a=scales, scale_b=w_scales) + 1

    whole = torch.compile(products, fullgraph=True, dynamic=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for rows in (20, 33):
            x = torch.randn(rows, 300).bfloat16()
            assert torch.equal(whole(x), products(x))
    with pytest.raises((ValueError, torch._dynamo.exc.TorchRuntimeError), match=r"x has 3 dimensions; 2 are needed"):
        compiled(gg_runtime.quantize_1x128)(torch.zeros(2, 3, 4).half())
    with pytest.raises((RuntimeError, torch._dynamo.exc.Unsupported), match=r"quantize_1x128: x requires grad"):
        compiled(gg_runtime.quantize_1x128)(torch.zeros(2, 3).half().requires_grad_())


class Experts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        *_, w1, w2 = layer_operands()
        self.w1, self.w2 = torch.nn.Parameter(w1), torch.nn.Parameter(w2)

    def forward(self, x, ids, weights):
        return layer(x, ids, weights, self.w1, self.w2)


@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_program_runs_in_another_process(strict, tmp_path):
    x, ids, weights, *_ = layer_operands()
    tokens = torch.export.Dim("tokens", min=2, max=1024)
    with torch.no_grad():
        program = torch.export.export(
            Experts(), (x, ids, weights), strict=strict, dynamic_shapes=({0: tokens}, {0: tokens}, {0: tokens})
        )
    targets = [str(node.target) for node in program.graph.nodes if "gg_runtime" in str(node.target)]
    assert targets == [f"gg_runtime.{name}.default" for name in ("route", "grouped_mm", "grouped_mm", "combine")]
    more = torch.cat([x, x[:3]]), torch.cat([ids, ids[:3]]), torch.cat([weights, weights[:3]])
    with torch.no_grad():
        expected = Experts()(*more)
        assert torch.equal(program.module()(*more), expected)
    torch.export.save(program, tmp_path / "layer.pt2")
    torch.save((more, expected), tmp_path / "case.pt")
    run_python(f"""
        import torch
        import gg_runtime.torch
        more, expected = torch.load({str(tmp_path / "case.pt")!r})
        program = torch.export.load({str(tmp_path / "layer.pt2")!r})
        with torch.no_grad():
            assert torch.equal(program.module()(*more), expected)
    """, tmp_path)  # fmt: skip


def test_training_is_exported_as_well():
    class Product(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.b = torch.nn.Parameter(case.mat_b)

        def forward(self, a, offs):
            return gg_runtime.grouped_mm(a, self.b, offs=offs)

    case = case_of("ragged_m")
    program = torch.export.export(Product(), (case.mat_a, case.offs))
    module = program.module()
    module(case.mat_a, case.offs).backward(case.gradient)
    cases.assert_same(next(module.parameters()).grad, cases.exact(case)[1][1], "gradient of b")


def test_none_counts_as_left_out():
    case = case_of("ragged_k")
    left_out = dict.fromkeys(("bias", "gate_up", "batch_invariant", "alpha", "beta", "k_alignment"))

    def multiply(mat_a):
        return gg_runtime.grouped_mm(mat_a, case.mat_b, offs=case.offs, **left_out)

    assert torch.equal(compiled(multiply)(case.mat_a), multiply(case.mat_a))


def test_a_tangent_is_not_lost():
    case = case_of("ragged_m")

    def tangent(mat_a):
        return torch.func.jvp(lambda a: gg_runtime.grouped_mm(a, case.mat_b, offs=case.offs), (mat_a,), (mat_a,))[1]

    with pytest.raises(Exception, match="grouped_mm: it has no forward-mode derivatives"):
        compiled(tangent)(case.mat_a)


def test_what_wraps_a_function_is_compiled_too():
    """functools.wraps copies the attributes of a function, and torch's decorators use it."""
    case = case_of("ragged_m")

    @functools.wraps(gg_runtime.grouped_mm)
    def doubled(*arguments, **options):
        return 2 * gg_runtime.grouped_mm(*arguments, **options)

    def multiply(mat_a):
        return doubled(mat_a, case.mat_b, offs=case.offs)

    assert torch.equal(compiled(multiply)(case.mat_a), multiply(case.mat_a))
    unrecorded, a = torch.no_grad()(gg_runtime.grouped_mm), case.mat_a.clone().requires_grad_()
    assert not compiled(lambda a: unrecorded(a, case.mat_b, offs=case.offs))(a).requires_grad


def test_what_is_not_to_be_compiled_is_the_eager_function():
    case = case_of("ragged_m")
    eager = torch.compiler.disable(gg_runtime.grouped_mm)
    arrays = case.mat_a.half().numpy(), case.mat_b.half().numpy()
    out = eager(*arrays, offs=case.offs.numpy(), gate_up=None)
    assert (out == gg_runtime.grouped_mm(*arrays, offs=case.offs.numpy())).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_autocast_leaves_sums_on_the_cpu_in_float32(dtype):
    torch.manual_seed(0)
    x, w = torch.randn(64, 6).half(), 300 * torch.randn(64, 5).half()
    offs = torch.tensor([40, 64], dtype=torch.int32)
    calls = [
        lambda: gg_runtime.grouped_mm(x.T, w, offs=offs, out_dtype=torch.float32),
        lambda: gg_runtime.group_gemm([x.T, x], [w, w.T[:, :6].T])[0],
        lambda: gg_runtime.grouped_mm(x.view(2, 32, 6), w[:12].view(2, 6, 5)),
    ]
    for call in calls:
        right = call()
        with torch.autocast("cpu", dtype=dtype):
            assert torch.equal(call(), right)


def test_autocast_casts_nothing_as_torch_s_own_does_not():
    case = case_of("ragged_m")
    leaves = case.requiring_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        for multiply in (gg_runtime.grouped_mm, compiled(gg_runtime.grouped_mm)):
            output = leaves.multiply(multiply)
            assert output.dtype is torch.bfloat16
            output.backward(case.gradient)
            cases.assert_exact(case, output.detach(), [leaf.grad for leaf in leaves.inputs()])
            leaves.mat_a.grad = leaves.mat_b.grad = None
        wide = case._replace(mat_a=case.mat_a.float(), mat_b=case.mat_b.float())
        assert wide.multiply(torch.nn.functional.grouped_mm).dtype is torch.float32
        with pytest.raises(TypeError, match="grouped_mm: mat_a has dtype float32"):
            wide.multiply(gg_runtime.grouped_mm)


@pytest.mark.parametrize(
    ("name", "given"),
    [("out", 3), ("mat_b", 2.0), ("offs", [5, 9]), ("bias", "zeros"), ("scale_a", 1.0), ("a_index", 0)],
)
def test_what_is_no_tensor_is_refused_by_its_name(name, given):
    case = case_of("ragged_m")
    arguments = {"mat_a": case.mat_a, "mat_b": case.mat_b, "offs": case.offs} | {name: given}
    with pytest.raises((TypeError, torch._dynamo.exc.Unsupported)) as caught:
        compiled(gg_runtime.grouped_mm)(**arguments)
    assert f"grouped_mm: {name} is of type {type(given).__name__}; a tensor is needed" in str(caught.value)


DTENSOR = """
    import torch, torch.distributed as dist
    from torch.distributed.tensor import DeviceMesh, Replicate, distribute_tensor
    import gg_runtime
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    mesh = DeviceMesh("cpu", [0])
    a, b, offs = torch.ones(6, 8).half(), torch.ones(2, 8, 4).half(), torch.tensor([2, 6]).int()
    spread = distribute_tensor(b, mesh, [Replicate()])

    def refused(call, name):
        try:
            call()
        except (TypeError, torch._dynamo.exc.Unsupported) as error:
            assert f"{name} is a DTensor" in str(error) and f"{name}.to_local()" in str(error), error
        else:
            raise AssertionError("not refused")

    for mat_b in (spread, spread.detach().requires_grad_()):
        refused(lambda: gg_runtime.grouped_mm(a, mat_b, offs=offs), "mat_b")
        refused(lambda: gg_runtime.group_gemm([a], [mat_b]), "a matrix")
        refused(lambda: torch.compile(gg_runtime.grouped_mm, fullgraph=True, backend="aot_eager")(a, mat_b, offs=offs),
                "mat_b")
    w1, w2, rows = (distribute_tensor(torch.ones(*shape).half(), mesh, [Replicate()])
                    for shape in ((2, 8, 8), (2, 4, 8), (6, 8)))
    ids, weights = torch.zeros(6, 1).int(), torch.ones(6, 1)
    spread_ids = distribute_tensor(ids, mesh, [Replicate()])
    refused(lambda: gg_runtime.fused_experts(rows, w1, w2, weights, ids), "x")
    refused(lambda: gg_runtime.fused_experts(a, w1.to_local(), w2, weights, ids), "w2")
    refused(lambda: gg_runtime.combine(rows, ids), "y")
    refused(lambda: gg_runtime.route(spread_ids, 2), "topk_ids")
    refused(lambda: gg_runtime.quantize_1x128(rows), "x")
    C = gg_runtime.grouped_mm(a, spread.to_local(), offs=offs)
    assert torch.equal(C, torch.full((6, 4), 8.0).half())
    print("refused")
"""


def test_a_dtensor_is_refused_and_to_local_named(tmp_path):
    assert "refused" in run_python(DTENSOR, tmp_path)


@pytest.mark.parametrize("recorded", [False, True])
def test_a_nested_tensor_is_refused_and_its_values_named(recorded):
    rows = torch.nested.nested_tensor([torch.ones(2, 8), torch.ones(3, 8)], layout=torch.jagged, dtype=torch.bfloat16)
    mat_b, offs = torch.ones(2, 8, 4).bfloat16().requires_grad_(recorded), rows.offsets()[1:].int()
    for call in (gg_runtime.grouped_mm, compiled(gg_runtime.grouped_mm)):
        with pytest.raises((TypeError, torch._dynamo.exc.Unsupported), match=r"mat_a is a NestedTensor.*\.values\(\)"):
            call(rows, mat_b, offs=offs)
    assert torch.equal(gg_runtime.grouped_mm(rows.values(), mat_b, offs=offs), torch.full((5, 4), 8.0).bfloat16())


def test_a_tensor_that_holds_another_is_told_to_be_unwrapped():
    class Wrapper(torch.Tensor):
        @staticmethod
        def __new__(cls, inner):
            return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)

        def __init__(self, inner):
            self.inner = inner

        @classmethod
        def __torch_dispatch__(cls, function, types, arguments=(), named=None):
            unwrapped = [value.inner if isinstance(value, cls) else value for value in arguments]
            return function(*unwrapped, **(named or {}))

    case = case_of("ragged_m")
    found = case._replace(mat_a=Wrapper(case.mat_a)).multiply(gg_runtime.grouped_mm)
    cases.assert_same(found, cases.exact(case)[0], "output")

    x, ids = torch.ones(6, 8).half(), torch.tensor([[0], [1], [2], [0], [1], [2]]).int()
    w1, w2, weights = torch.ones(3, 8, 8).half(), torch.ones(3, 4, 8).half(), torch.rand(6, 1)
    layer = gg_runtime.fused_experts(x, w1, w2, weights, ids)
    assert torch.equal(layer, gg_runtime.fused_experts(x, Wrapper(w1), w2, weights, ids))
    assert torch.equal(layer, gg_runtime.fused_experts(x, w1, w2, Wrapper(weights), ids))


def test_the_first_use_may_be_in_a_compiled_function(tmp_path):
    """gg_runtime is imported before torch, and gg_runtime.torch by nobody."""
    run_python("""
        import gg_runtime
        import torch

        @torch.compile(fullgraph=True, backend="aot_eager")
        def multiply(a, b, offs):
            return gg_runtime.grouped_mm(a, b, offs=offs)

        a, b = torch.ones(6, 8).half(), torch.ones(2, 8, 4).half()
        assert torch.equal(multiply(a, b, torch.tensor([2, 6]).int()), torch.full((6, 4), 8.0).half())
    """, tmp_path)  # fmt: skip
