"""batch_invariant comes through: to plans, explanations, compiled calls and the products of a backward."""

import pytest

torch = pytest.importorskip("torch")

import gg_runtime  # noqa: E402
import gg_runtime.torch  # noqa: E402
import gradient_cases as cases  # noqa: E402
from devices import H200  # noqa: E402
from gg_runtime import _C  # noqa: E402
from train_oracle import gradients_of, make  # noqa: E402


@pytest.fixture
def asked(monkeypatch):
    """Of each product of ragged rows that is asked of the extension, whether its bits are to be the batch's own."""
    made = []
    for name, place in (("grouped_mm", 8), ("down_gradient", 14), ("fused_experts", 17), ("check_experts", 17)):
        original = getattr(_C, name)

        def spy(*given, function=original, name=name, place=place):
            if name != "grouped_mm" or (given[0].ndim, given[1].ndim) == (2, 3):
                made.append((name, bool(given[place])))
            return function(*given)

        monkeypatch.setattr(_C, name, spy)
    return made


def compiled(function):
    torch._dynamo.reset()
    return torch.compile(lambda *given, **named: function(*given, **named) * 1, fullgraph=True, backend="aot_eager")


EITHER = {"eager": lambda function: function, "compiled": compiled}


@pytest.mark.parametrize("way", EITHER)
@pytest.mark.parametrize("invariant", [True, False])
@pytest.mark.parametrize("form", ["ragged_m", "ragged_n"])
def test_products_of_a_backward_are_as_batch_invariant_as_the_forward(form, invariant, way, asked):
    case = cases.make(form, dtype=torch.bfloat16, device="cpu").requiring_grad()
    out = EITHER[way](gg_runtime.grouped_mm)(case.mat_a, case.mat_b, offs=case.offs, batch_invariant=invariant)
    out.backward(case.gradient)
    assert len(asked) >= (2 if form == "ragged_m" else 1) and {how for _, how in asked} == {invariant}, asked


@pytest.mark.parametrize("way", EITHER)
@pytest.mark.parametrize("invariant", [True, False])
@pytest.mark.parametrize("options", [{}, {"activation": None}, {"apply_router_weight_on_input": True}], ids=str)
def test_all_products_of_a_layer_that_learns_are_as_batch_invariant_as_it_is_asked(options, invariant, way, asked):
    options = dict(options)
    arguments = make(activation=options.pop("activation", "swiglu")) | options | {"batch_invariant": invariant}
    gradients_of(EITHER[way](gg_runtime.fused_experts), arguments, torch.randn(13, 24).bfloat16())
    names = [name for name, _ in asked]
    assert names.count("grouped_mm") >= 3 and "down_gradient" in names
    assert {how for _, how in asked} == {invariant}, asked


@pytest.mark.parametrize("invariant", [True, False])
def test_a_compiled_layer_that_does_not_learn_is_as_batch_invariant_as_it_is_asked(invariant, asked):
    arguments = make() | {"batch_invariant": invariant}
    compiled(gg_runtime.fused_experts)(**arguments)
    assert asked and {how for _, how in asked} == {invariant}, asked


@pytest.mark.parametrize(("function", "place"), [("Plan", 8), ("ExpertsPlan", 17), ("explain_experts", 17)])
def test_what_is_made_ready_and_explained_is_as_batch_invariant_as_it_is_asked(function, place, monkeypatch):
    asked, original = [], getattr(_C, function)
    monkeypatch.setattr(_C, function, lambda *given: asked.append(given[place]) or original(*given))
    a, b, offs = torch.ones(20, 8).half(), torch.ones(2, 8, 8).half(), torch.tensor([4, 18]).int()
    given = {"group_A": a, "group_B": b, "offs": offs} if function == "Plan" else make()
    given |= {"device": H200} if function == "explain_experts" else {}
    for invariant in (True, False):
        getattr(gg_runtime, function)(**given, batch_invariant=invariant)
    assert asked == [True, False]
