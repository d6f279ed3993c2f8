"""Gradients of fused_experts on the CPU path, against torch's of a layer in float64; what is kept for them."""

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gg_runtime

torch = pytest.importorskip("torch")

from torch.utils.checkpoint import checkpoint  # noqa: E402

import gg_runtime.torch  # noqa: E402
from experts_oracle import ACTIVATIONS, GATE_ORDERS, GATED  # noqa: E402
from train_oracle import NAMES, assert_near, gradients_of, layer, leaves_of, make  # noqa: E402

NAN = float("nan")


def gradient_for(arguments, seed=1):
    torch.manual_seed(seed)
    return torch.randn(arguments["x"].shape).to(arguments["x"].dtype)


def check(arguments, **tolerance):
    gradient = gradient_for(arguments)
    found = gradients_of(gg_runtime.fused_experts, arguments, gradient)
    assert_near(found, arguments, gradient, **tolerance)
    return found


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("activation", "order"),
    [(one, order) for one in ACTIVATIONS for order in (GATE_ORDERS if one in GATED else ["gate_first"])],
)
def test_every_activation_in_every_order(activation, order, dtype):
    check(make(activation=activation, dtype=dtype, biases=True) | {"gate_up": order})


@pytest.mark.parametrize("limit", [0.25, 1.5, float("inf")])
@pytest.mark.parametrize("activation", ["swiglu", "swiglu_oai"])
def test_gradients_stop_at_limits(activation, limit):
    check(make(activation=activation, biases=True) | {"swiglu_limit": limit})


@settings(max_examples=60, deadline=None)
@given(
    tokens=st.integers(0, 9), k=st.sampled_from([0, 1, 2, 5]), experts=st.sampled_from([1, 2, 7]),
    hidden=st.sampled_from([1, 8, 17]), inner=st.sampled_from([0, 1, 8, 9]), on_input=st.booleans(),
    transposed=st.booleans(), biases=st.booleans(), data=st.data(),
)  # fmt: skip
def test_any_sizes_and_arguments(tokens, k, experts, hidden, inner, on_input, transposed, biases, data):
    activation = data.draw(st.sampled_from(list(ACTIVATIONS)))
    weight_dtype = data.draw(st.sampled_from([torch.float32, torch.float16, torch.bfloat16]))
    arguments = make(
        tokens, k, experts, hidden, inner, activation=activation, transposed=transposed, biases=biases,
        weight_dtype=weight_dtype,
    )  # fmt: skip
    arguments["apply_router_weight_on_input"] = on_input
    if data.draw(st.booleans()):
        known = data.draw(st.integers(0, 6))
        arguments["expert_map"] = torch.randint(-1, experts + 1, (known,), generator=torch.Generator().manual_seed(2))
    if data.draw(st.booleans()):
        arguments |= {"add": torch.randn(tokens, hidden).bfloat16(), "scale": 2.5}
    if data.draw(st.booleans()):
        arguments["topk_ids"] = arguments["topk_ids"].int()
    check(arguments, slack=8)


def test_a_default_dtype_of_the_program_changes_nothing():
    arguments = make(dtype=torch.float16, biases=True)
    gradient = gradient_for(arguments)
    expected = gradients_of(gg_runtime.fused_experts, arguments, gradient)
    torch.set_default_dtype(torch.float16)
    try:
        found = gradients_of(gg_runtime.fused_experts, arguments, gradient)
    finally:
        torch.set_default_dtype(torch.float32)
    assert sorted(found) == sorted(expected) and all(torch.equal(found[name], expected[name]) for name in found)


@pytest.mark.parametrize("transposed", [True, False])
def test_gradients_of_weights_lie_as_the_weights_do(transposed):
    found = check(make(transposed=transposed))
    assert [found[name].mT.is_contiguous() for name in ("w1", "w2")] == [transposed] * 2


@pytest.mark.parametrize("name", NAMES)
def test_one_gradient_alone_is_what_it_is_among_all(name):
    arguments = make(biases=True) | {"add": torch.randn(13, 24).bfloat16(), "scale": 0.5}
    gradient = gradient_for(arguments)
    together = gradients_of(gg_runtime.fused_experts, arguments, gradient)
    leaves = leaves_of(arguments, needs=(name,))
    gg_runtime.fused_experts(**leaves).backward(gradient)
    assert torch.equal(leaves[name].grad, together[name])
    assert all(leaves[other].grad is None for other in NAMES if other != name)


@pytest.mark.parametrize("activation", ["swiglu", "gelu", None])
def test_what_is_kept_is_x_the_pre_activation_and_the_routing(activation):
    arguments = make(tokens=64, activation=activation, biases=True)
    leaves = leaves_of(arguments)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda one: one):
        gg_runtime.fused_experts(**leaves)
    own = {one.data_ptr(): one.numel() * one.element_size() for one in kept}
    for name in ("w1", "w2", "b2"):
        own.pop(leaves[name].data_ptr())
    rows, columns = 64 * 3, arguments["w1"].shape[2]
    routing = 4 * (rows + 3 * rows + 5)  # the weights; token, slot and inverse; ends
    assert sum(own.values()) == 2 * 64 * 24 + 2 * rows * columns + routing


@pytest.mark.parametrize("reentrant", [False, True])
def test_under_checkpointing_gradients_are_the_same_bits(reentrant):
    arguments = make(biases=True)
    gradient = gradient_for(arguments)
    want = gradients_of(gg_runtime.fused_experts, arguments, gradient)

    def checkpointed(**leaves):
        names = [name for name in NAMES if name in leaves]
        others = {name: value for name, value in leaves.items() if name not in names}
        return checkpoint(
            lambda *tensors: gg_runtime.fused_experts(**dict(zip(names, tensors)), **others),
            *(leaves[name] for name in names), use_reentrant=reentrant,
        )  # fmt: skip

    found = gradients_of(checkpointed, arguments, gradient)
    assert all(torch.equal(found[name], want[name]) for name in want)


def test_gradients_that_are_kept_elsewhere_come_back():
    arguments = make(biases=True)
    gradient = gradient_for(arguments)
    want = gradients_of(gg_runtime.fused_experts, arguments, gradient)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor.clone(), lambda tensor: tensor):
        found = gradients_of(gg_runtime.fused_experts, arguments, gradient)
    assert all(torch.equal(found[name], want[name]) for name in want)


def test_a_gradient_that_is_still_on_its_way_is_waited_for():
    """As a collective in another layer's backward gives it."""
    collectives = pytest.importorskip("torch.distributed._functional_collectives")
    arguments, gradient = make(), torch.randn(13, 24).bfloat16()
    want = gradients_of(gg_runtime.fused_experts, arguments, gradient)

    class Late(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return collectives.AsyncCollectiveTensor(gradient)

    found = gradients_of(lambda **given: Late.apply(gg_runtime.fused_experts(**given)), arguments, gradient)
    assert all(torch.equal(found[name], want[name]) for name in want)


def test_a_second_derivative_is_refused_by_name():
    leaves = leaves_of(make())
    out = gg_runtime.fused_experts(**leaves)
    (of_x,) = torch.autograd.grad(out.sum(), leaves["x"], create_graph=True)
    with pytest.raises(RuntimeError, match=r"fused_experts: its gradient is differentiated.*create_graph=True"):
        of_x.float().square().sum().backward()


def test_an_output_of_the_callers_is_refused():
    leaves = leaves_of(make(), needs=("w1",))
    with pytest.raises(RuntimeError, match="fused_experts: w1 requires grad, and out has no gradients: leave it out"):
        gg_runtime.fused_experts(**leaves, out=torch.empty(13, 24).bfloat16())
    with torch.no_grad():
        assert not gg_runtime.fused_experts(**leaves, out=torch.empty(13, 24).bfloat16()).requires_grad


def test_wrong_arguments_are_told_of_this_function():
    leaves = leaves_of(make())
    with pytest.raises(ValueError, match="fused_experts: w2 has E=4 matrices"):
        gg_runtime.fused_experts(**leaves | {"w2": leaves["w2"][:4]})


@pytest.mark.parametrize("largest", [100.0, float("inf"), 0.0])
def test_gradients_of_weights_are_float32_where_sums_are_more_than_float16_holds(largest):
    """A bias of 4096 ones, and gradients that a loss was scaled for."""
    torch.manual_seed(0)
    w1, w2 = (torch.randn(2, 4096, 32) / 64).half(), (torch.randn(2, 16, 4096) / 400).half()
    weights, ids = torch.rand(2, 1).requires_grad_(), torch.zeros(2, 1, dtype=torch.int32)
    x, b2 = torch.randn(2, 4096).half(), torch.ones(2, 4096).half()
    out = gg_runtime.fused_experts(x, w1, w2, weights, ids, b2=b2)
    out.backward(torch.full((2, 4096), largest).half())
    if largest == 100:
        assert (weights.grad / (100 * 4096) - 1).abs().max() < 0.05
    else:
        assert not weights.grad.any() if largest == 0 else not weights.grad.isfinite().any()


@pytest.mark.parametrize(("name", "change", "words"), [
    ("x", lambda x: x[:1], r"topk_ids has shape \[\d+, \d+\] but x has 1 tokens"),
    ("topk_ids", lambda ids: ids[:1], "topk_ids has shape"), ("x", lambda x: x[0], "x has 1 dimension"),
    ("topk_weights", lambda weights: weights.double(), "topk_weights has dtype float64"),
])  # fmt: skip
def test_wrong_arguments_of_rows_that_are_weighted_first_are_those_of_the_caller(name, change, words):
    arguments = make() | {"apply_router_weight_on_input": True}
    arguments["w1"] = arguments["w1"].detach().requires_grad_()
    with pytest.raises((ValueError, TypeError), match=words):
        gg_runtime.fused_experts(**arguments | {name: change(arguments[name])})


def test_a_gradient_without_memory_of_its_own():
    """What `sum` hands back is one element, seen as a matrix."""
    arguments = make()
    leaves, copies = leaves_of(arguments), leaves_of(arguments)
    gg_runtime.fused_experts(**leaves).sum().backward()
    gg_runtime.fused_experts(**copies).backward(torch.ones(13, 24).bfloat16())
    assert all(torch.equal(leaves[name].grad, copies[name].grad) for name in ("x", "w1", "w2", "topk_weights"))


@pytest.mark.parametrize("on_input", [False, True])
def test_nan_that_nobody_asked_for_stays_out(on_input):
    arguments = make(tokens=40, experts=6, biases=True, dropped=False) | {"apply_router_weight_on_input": on_input}
    ids = arguments["topk_ids"]
    ids[ids == 4] = 3
    ids[::5], ids[1] = -1, 6
    gradient = gradient_for(arguments)
    want = gradients_of(gg_runtime.fused_experts, arguments, gradient)
    poisoned = copy.deepcopy(arguments)
    for name in ("w1", "w2", "b1", "b2"):
        poisoned[name][4] = NAN
    poisoned["topk_weights"][(ids < 0) | (ids == 6)] = NAN
    poisoned["x"][::5], poisoned["x"][1] = NAN, NAN
    gradient[::5], gradient[1] = NAN, NAN
    found = gradients_of(gg_runtime.fused_experts, poisoned, gradient)
    assert all(torch.equal(found[name], want[name]) for name in want)
    assert not found["w1"][4].any() and not found["b2"][4].any() and not found["x"][1].any()


class Parameters(torch.nn.Module):
    """Weights as models keep them, [E, columns, rows]."""

    def __init__(self, arguments):
        super().__init__()
        self.up = torch.nn.Parameter(arguments["w1"].mT.clone())
        self.down = torch.nn.Parameter(arguments["w2"].clone())
        for parameter in self.parameters():
            parameter.main_grad = torch.full_like(parameter, 0.5, dtype=torch.float32)

    def forward(self, arguments, **options):
        given = arguments | {"w1": self.up.mT, "w2": self.down} | options
        return gg_runtime.torch.experts.fused_experts(**given)


def test_main_gradients_are_float32_and_added_to():
    arguments = make()
    arguments["x"].requires_grad_()
    experts, gradient = Parameters(arguments), gradient_for(arguments)
    exact = gradients_of(layer, arguments, gradient, torch.float64)
    for time in (1, 2):
        experts(arguments, into_main_grad=True).backward(gradient)
        for parameter, right in ((experts.up, exact["w1"].mT), (experts.down, exact["w2"])):
            assert parameter.grad is None
            torch.testing.assert_close(parameter.main_grad.double(), 0.5 + time * right, rtol=0.02, atol=0.02)
    once = experts.down.main_grad - 0.5
    assert (once.bfloat16().float() != once).any(), "rounded to 16 bits"


@pytest.mark.parametrize("zeros", [False, True])
def test_megatrons_hooks_see_that_a_gradient_was_added(zeros):
    arguments = make()
    experts = Parameters(arguments)
    for parameter in experts.parameters():
        parameter.grad_added_to_main_grad, parameter.zero_out_wgrad = False, zeros
    ran = []
    experts.up.register_post_accumulate_grad_hook(lambda parameter: ran.append(parameter.grad_added_to_main_grad))
    experts(arguments, into_main_grad=True).sum().backward()
    assert ran == [True] and experts.up.grad.shape == experts.up.shape
    assert not zeros or not experts.up.grad.any()


def test_main_gradients_that_do_not_fit_are_refused():
    arguments = make()
    experts = Parameters(arguments)
    more = torch.nn.Parameter(torch.zeros(6, 40, 24).bfloat16())
    more.main_grad = torch.zeros(6, 40, 24)
    with pytest.raises(ValueError, match=r"w1 is another view of its parameter than parameter\.mT"):
        experts(arguments, into_main_grad=True, w1=more[1:].mT)
    experts.up.main_grad = experts.up.main_grad.bfloat16()
    with pytest.raises(ValueError, match=r"main_grad of w1 is torch\.bfloat16.*float32"):
        experts(arguments, into_main_grad=True)
    del experts.up.main_grad
    with pytest.raises(ValueError, match="w1 has no main_grad; set parameter.main_grad"):
        experts(arguments, into_main_grad=True)


def test_main_gradients_of_square_matrices_lie_as_their_parameter():
    arguments = leaves_of(make(inner=12), needs=())
    up = torch.nn.Parameter(arguments["w1"].mT)  # [5, 24, 24], as its .mT is
    up.main_grad = torch.zeros_like(up, dtype=torch.float32)
    gg_runtime.torch.experts.fused_experts(**arguments | {"w1": up.mT}, into_main_grad=True).sum().backward()
    gg_runtime.fused_experts(**arguments | {"w1": up.mT}).sum().backward()
    assert torch.equal(up.main_grad.bfloat16(), up.grad)


def test_a_main_gradient_of_another_shape_is_refused():
    arguments = leaves_of(make(transposed=False), needs=("w1",))
    arguments["w1"].main_grad = torch.zeros(5, 40, 24)
    with pytest.raises(ValueError, match=r"main_grad of w1 is .*\[5, 40, 24\].*\[5, 24, 40\] .* is needed"):
        gg_runtime.torch.experts.fused_experts(**arguments, into_main_grad=True)


def test_a_weight_that_does_not_learn_needs_no_main_gradient():
    arguments = leaves_of(make(transposed=False), needs=("w2",))
    arguments["w2"].main_grad = torch.zeros_like(arguments["w2"], dtype=torch.float32)
    gg_runtime.torch.experts.fused_experts(**arguments, into_main_grad=True).sum().backward()
    assert arguments["w2"].main_grad.any() and arguments["w1"].grad is None


def test_nan_weights_of_slots_that_a_map_drops_stay_out_of_rows_that_are_weighted_first():
    arguments = make(tokens=40, experts=4) | {"apply_router_weight_on_input": True}
    arguments["expert_map"] = torch.tensor([2, -1, 4, 0, 99, 3])  # 4 and 99 are not here, 6 and 7 not known
    ids = arguments["topk_ids"] = torch.randint(-1, 8, (40, 3), generator=torch.Generator().manual_seed(3))
    gradient = torch.randn(40, 24).bfloat16()
    want = gradients_of(gg_runtime.fused_experts, arguments, gradient)
    weights = arguments["topk_weights"].clone()
    weights[(ids != 0) & (ids != 3) & (ids != 5)] = float("nan")
    found = gradients_of(gg_runtime.fused_experts, arguments | {"topk_weights": weights}, gradient)
    assert all(torch.equal(found[name], want[name]) for name in want)


def test_a_scale_that_is_a_tensor_is_refused_beside_main_gradients_too():
    with pytest.raises(TypeError, match="fused_experts: scale is a Tensor; a number is needed"):
        gg_runtime.torch.experts.fused_experts(**leaves_of(make()), scale=torch.tensor(2.0, requires_grad=True))
