"""Every argument of a call comes through torch.compile: to the op, to what learns, and to what is refused."""

import pytest

torch = pytest.importorskip("torch")

import gg_runtime  # noqa: E402
import gg_runtime.torch  # noqa: E402
from train_oracle import gradients_of, make  # noqa: E402


@pytest.fixture(autouse=True)
def nothing_compiled_before():
    torch._dynamo.reset()


def compiled(function):
    return torch.compile(lambda **given: function(**given) * 1, fullgraph=True, backend="aot_eager")


LAYERS = {
    "order": {"gate_up": "interleaved"},
    "a limit": {"swiglu_limit": 0.25},
    "biases": {"biases": True},
    "map": {"expert_map": torch.tensor([3, -1, 0, 1, 4, 2])},
    "added": {"add": torch.ones(13, 24).bfloat16(), "scale": 0.5},
    "on input": {"apply_router_weight_on_input": True, "add": torch.ones(13, 24).bfloat16(), "scale": 0.5},
}


@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_all_arguments_of_a_layer_go_through(name, learns):
    options = dict(LAYERS[name])
    arguments = make(biases=options.pop("biases", False)) | options
    plain, gradient = make(), torch.randn(13, 24).bfloat16()
    if not learns:
        found, want = compiled(gg_runtime.fused_experts)(**arguments), gg_runtime.fused_experts(**arguments)
        assert torch.equal(found, want) and not torch.equal(want, gg_runtime.fused_experts(**plain))
        return
    want, found = (
        gradients_of(one, arguments, gradient) for one in (gg_runtime.fused_experts, compiled(gg_runtime.fused_experts))
    )
    assert want.keys() == found.keys() and all(torch.equal(found[one], want[one]) for one in want)


A, B = (
    torch.arange(45.0 * 24).reshape(45, 24).remainder(7).bfloat16(),
    torch.arange(4 * 24 * 40.0).reshape(4, 24, 40).remainder(5).bfloat16() - 2,
)
OFFS = torch.tensor([7, 7, 30, 41], dtype=torch.int32)
E4M3 = torch.float8_e4m3fn
K8, OF_A, OF_B = torch.arange(16.0 * 300).reshape(16, 300).remainder(5).to(E4M3), torch.rand(16, 5), torch.rand(5, 16)
PRODUCTS = {
    "order": {"mat_a": A, "mat_b": B, "offs": OFFS, "activation": "swiglu", "gate_up": "interleaved"},
    "a limit": {"mat_a": A, "mat_b": B, "offs": OFFS, "activation": "swiglu_oai", "swiglu_limit": 3.0},
    "counts": {"mat_a": A[:40].view(4, 10, 24), "mat_b": B, "counts": torch.tensor([3, 0, 10, 99]).int()},
    "a number": {"mat_a": A.T, "mat_b": A, "offs": OFFS, "alpha": 0.5, "out_dtype": torch.float32},
    "alignment": {
        "mat_a": K8,
        "mat_b": K8.T,
        "offs": torch.tensor([100, 200, 300]).int(),
        "k_alignment": 128,
        "scale_a": OF_A,
        "scale_b": OF_B,
    },
}


@pytest.mark.parametrize("into", [False, True])
@pytest.mark.parametrize("name", PRODUCTS)
def test_all_arguments_of_a_product_go_through(name, into):
    given = PRODUCTS[name]
    want = gg_runtime.grouped_mm(**given)
    found = compiled(gg_runtime.grouped_mm)(**given | ({"out": torch.zeros_like(want)} if into else {}))
    assert torch.equal(found, want)
    told = ("gate_up", "swiglu_limit", "counts", "alpha", "k_alignment")
    changed = {one: value for one, value in given.items() if one not in told}
    assert not torch.equal(gg_runtime.grouped_mm(**changed), want), "the argument does nothing here"


def test_a_limit_that_is_no_number_is_refused_in_the_graph_too():
    given = PRODUCTS["a limit"] | {"swiglu_limit": "7"}
    for call in (gg_runtime.grouped_mm, compiled(gg_runtime.grouped_mm)):
        with pytest.raises((TypeError, torch._dynamo.exc.Unsupported), match=r"swiglu_limit is a str; a number is"):
            call(**given)


def test_all_arguments_of_the_parts_go_through():
    ids, expert_map, y = torch.arange(12).view(6, 2) % 5, torch.tensor([3, -1, 0, 1, 2]), torch.randn(12, 24).bfloat16()
    route = torch.compile(gg_runtime.route, fullgraph=True, backend="aot_eager")
    for found, want in zip(route(ids, 4, expert_map), gg_runtime.route(ids, 4, expert_map)):
        assert torch.equal(found, want)
    given = {
        "y": y,
        "inverse": gg_runtime.route(ids, 4).inverse,
        "weights": torch.rand(6, 2),
        "add": y[:6],
        "scale": 0.5,
    }
    assert torch.equal(compiled(gg_runtime.combine)(**given), gg_runtime.combine(**given))


@pytest.mark.parametrize(
    "given", [{"max_rows": 39}, {"workspace": torch.empty(10**5, dtype=torch.uint8)}], ids=lambda one: next(iter(one))
)
def test_memory_and_a_gradient_are_refused_in_the_graph_too(given):
    arguments = make()
    arguments["w1"].requires_grad_()
    with pytest.raises(
        RuntimeError, match=f"fused_experts: w1 requires grad, and {next(iter(given))} is not for a call"
    ):
        compiled(gg_runtime.fused_experts)(**arguments | given)


@pytest.mark.parametrize(
    "wrong",
    [{"topk_weights": torch.ones(13, 1)}, {"add": torch.ones(13, 1).bfloat16()}, {"add": torch.ones(13, 24)}],
    ids=["slots", "a column", "float32"],
)
def test_weights_on_the_input_are_neither_broadcast_nor_converted_in_the_graph_either(wrong):
    arguments = make() | wrong
    arguments["x"].requires_grad_()
    with pytest.raises(RuntimeError, match=f"fused_experts: {next(iter(wrong))} has"):
        compiled(gg_runtime.fused_experts)(**arguments, apply_router_weight_on_input=True)
