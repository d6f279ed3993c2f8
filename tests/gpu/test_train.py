"""Gradients of fused_experts on the GPU, against torch's of a layer in float64; bits, graphs, memory."""

import copy

import pytest

torch = pytest.importorskip("torch")

import gg_runtime  # noqa: E402
import gg_runtime.torch  # noqa: E402
from capture import captured  # noqa: E402
from experts_oracle import ACTIVATIONS, GATE_ORDERS, GATED, activate  # noqa: E402
from gg_runtime.activation_gradient import activation_gradient  # noqa: E402
from gpu_busy import assert_no_call_waits  # noqa: E402
from train_oracle import NAMES, assert_near, gradients_of, layer, leaves_of, make  # noqa: E402

NAN = float("nan")
DTYPES = [torch.float16, torch.bfloat16]
ORDERED = [(one, order) for one in ACTIVATIONS for order in (GATE_ORDERS if one in GATED else ["gate_first"])]


def arguments_for(*sizes, **options):
    return make(*sizes, device="cuda", **options)


def gradient_for(arguments, seed=1):
    torch.manual_seed(seed)
    return torch.randn(arguments["x"].shape, device="cuda").to(arguments["x"].dtype)


def check(arguments):
    gradient = gradient_for(arguments)
    found = gradients_of(gg_runtime.fused_experts, arguments, gradient)
    assert_near(found, arguments, gradient)
    return found


def all_equal(found, want):
    return all(torch.equal(found[name], want[name]) for name in want)


# activation_gradient alone


@pytest.mark.parametrize("columns", [256, 768, 61], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("activation", "order"), ORDERED)
def test_the_kernel_goes_back_through_every_activation(activation, order, dtype, columns):
    """In poisoned memory: rows past the last end and slots of nobody are left alone."""
    rows, written = 301, 290
    wide = columns * (2 if activation in GATED else 1)
    z = (torch.randn(rows, wide, device="cuda") * 4).to(dtype)
    z[1, :6] = torch.tensor([7, -7, 7.5, -7.5, 1, -1])
    dh = torch.randn(rows, columns, device="cuda").to(dtype)
    weights, slot = torch.rand(80, 4, device="cuda"), torch.randperm(320, device="cuda")[:rows].int()
    slot[5] = -1
    wanted = by_torch(z[:written], dh[:written], weights, slot[:written], activation, order)
    z[written:], dh[written:] = NAN, NAN
    dz, h, of_weights = torch.full_like(z, 5), torch.full_like(dh, 5), torch.full_like(weights, NAN)
    given = {"activation": activation, "gate_up": order, "weights": weights, "slot": slot, "scale": 0.5}
    given["ends"] = torch.tensor([7, 7, written], device="cuda", dtype=torch.int32)
    activation_gradient(z, dh, dz, h=h, dweights=of_weights, **given)
    unit = torch.finfo(dtype).eps
    for made, right in zip((dz, h), wanted):
        assert made[written:].eq(5).all()
        torch.testing.assert_close(made[:written].double(), right, rtol=unit, atol=1e-5)
    own = torch.zeros(320, dtype=torch.bool, device="cuda")
    own[slot[:written][slot[:written] >= 0].long()] = True
    assert of_weights.isnan().reshape(-1).logical_xor(own).all()
    torch.testing.assert_close(of_weights.reshape(-1)[own].double(), wanted[2].reshape(-1)[own], rtol=1e-5, atol=1e-4)
    again = [torch.full_like(one, NAN) for one in (dz, h, of_weights)]
    activation_gradient(z, dh, again[0], h=again[1], dweights=again[2], **given)
    assert torch.equal(again[0][:written], dz[:written]) and torch.equal(again[1][:written], h[:written])
    assert torch.equal(again[2].reshape(-1)[own], of_weights.reshape(-1)[own])


def by_torch(z, dh, weights, slot, activation, order):
    z, weights = z.double().requires_grad_(), weights.double().requires_grad_()
    factor = torch.where(slot >= 0, weights.reshape(-1)[slot.clamp(min=0).long()], 0.0)
    h = 0.5 * factor[:, None] * activate(z, activation, order)
    h.backward(dh.double())
    return z.grad, h.detach(), weights.grad


def test_rows_of_the_kernel_lie_anywhere():
    z, dh = torch.randn(90, 512, device="cuda").bfloat16(), torch.randn(90, 256, device="cuda").bfloat16()
    want = torch.empty_like(z)
    activation_gradient(z, dh, want, activation="swiglu", gate_up="interleaved")
    for offset, pad in ((0, 8), (1, 0), (8, 8), (0, 3)):
        wide = [torch.full((90, n + offset + pad), NAN, device="cuda").bfloat16() for n in (512, 256, 512)]
        views = [one[:, offset : one.shape[1] - pad] for one in wide]
        views[0].copy_(z), views[1].copy_(dh)
        activation_gradient(*views, activation="swiglu", gate_up="interleaved")
        assert torch.equal(views[2], want)
        assert wide[2].isnan().sum() == 90 * (offset + pad)
    turned = [torch.empty(n, 90, device="cuda").bfloat16().mT for n in (512, 256, 512)]
    turned[0].copy_(z), turned[1].copy_(dh)
    activation_gradient(*turned, activation="swiglu", gate_up="interleaved")
    assert torch.equal(turned[2], want)


# The layer


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("activation", "order"), ORDERED)
def test_every_activation_in_every_order(activation, order, dtype):
    check(arguments_for(64, 4, 8, 256, 128, activation=activation, dtype=dtype, biases=True) | {"gate_up": order})


SHAPES = [
    (0, 4, 8, 256, 128), (1, 8, 128, 512, 64), (1, 1, 1, 64, 64), (300, 8, 60, 512, 96), (2048, 4, 16, 256, 128),
    (77, 3, 5, 75, 61), (40, 16, 512, 128, 64), (500, 1, 4, 8, 8), (9, 2, 4, 64, 0), (4000, 8, 3, 64, 1),
    (1024, 8, 64, 1024, 768),
]  # fmt: skip


@pytest.mark.parametrize("transposed", [True, False], ids=["nk", "kn"])
@pytest.mark.parametrize("sizes", SHAPES, ids=str)
def test_any_sizes(sizes, transposed):
    found = check(arguments_for(*sizes, transposed=transposed, biases=True))
    for name in ("w1", "w2"):
        assert (found[name].mT if transposed else found[name]).is_contiguous()


@pytest.mark.parametrize("sizes", [(64, 4, 8, 256, 128), (77, 3, 5, 75, 61)], ids=str)
@pytest.mark.parametrize("activation", ["swiglu_oai", "relu2", None])
@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("on_input", [False, True])
def test_biases_weights_maps_and_what_is_added(on_input, weights, activation, sizes):
    arguments = arguments_for(*sizes, activation=activation, biases=True, weight_dtype=weights)
    arguments |= {"add": gradient_for(arguments, seed=3), "scale": 2.5, "apply_router_weight_on_input": on_input}
    arguments["expert_map"] = torch.randint(-1, sizes[2] + 1, (sizes[2] + 1,), device="cuda", dtype=torch.int32)
    check(arguments)


@pytest.mark.parametrize("sizes", [(300, 4, 16, 256, 128), (77, 3, 6, 75, 61)], ids=str)
@pytest.mark.parametrize("activation", ["swiglu", "swiglu_oai"])
def test_gradients_stop_at_limits(activation, sizes):
    for limit in (0.5, 2.0, float("inf")):
        check(arguments_for(*sizes, activation=activation, biases=True) | {"swiglu_limit": limit})


@pytest.mark.parametrize("name", NAMES)
def test_one_gradient_alone_is_what_it_is_among_all(name):
    arguments = arguments_for(200, 4, 8, 256, 128, biases=True)
    arguments |= {"add": gradient_for(arguments, seed=3), "scale": 0.5}
    gradient = gradient_for(arguments)
    together = gradients_of(gg_runtime.fused_experts, arguments, gradient)
    leaves = leaves_of(arguments, needs=(name,))
    gg_runtime.fused_experts(**leaves).backward(gradient)
    assert torch.equal(leaves[name].grad, together[name])


@pytest.mark.parametrize("on_input", [False, True])
@pytest.mark.parametrize("sizes", [(300, 4, 16, 256, 128), (77, 3, 6, 75, 61)], ids=str)
def test_nan_that_nobody_asked_for_stays_out(sizes, on_input):
    arguments = arguments_for(*sizes, biases=True, dropped=False) | {"apply_router_weight_on_input": on_input}
    ids = arguments["topk_ids"]
    ids[ids == 4] = 3
    ids[::5], ids[1] = -1, sizes[2]
    gradient = gradient_for(arguments)
    want = gradients_of(gg_runtime.fused_experts, arguments, gradient)
    assert_near(want, arguments, gradient)
    poisoned = copy.deepcopy(arguments)
    for name in ("w1", "w2", "b1", "b2"):
        poisoned[name][4] = NAN
    poisoned["topk_weights"][(ids < 0) | (ids == sizes[2])] = NAN
    poisoned["x"][::5], poisoned["x"][1] = NAN, NAN
    gradient[::5], gradient[1] = NAN, NAN
    garbage = torch.full((1 << 26,), NAN, device="cuda")  # what the allocator hands out again
    del garbage
    assert all_equal(gradients_of(gg_runtime.fused_experts, poisoned, gradient), want)


@pytest.mark.parametrize("sizes", [(700, 8, 32, 256, 128), (300, 3, 5, 75, 61)], ids=str)
def test_bits_are_the_same_again(sizes):
    arguments = arguments_for(*sizes, biases=True)
    gradient = gradient_for(arguments)
    first = gradients_of(gg_runtime.fused_experts, arguments, gradient)
    for _ in range(5):
        assert all_equal(gradients_of(gg_runtime.fused_experts, arguments, gradient), first)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        assert all_equal(gradients_of(gg_runtime.fused_experts, arguments, gradient), first)


@pytest.mark.parametrize("tokens", [8, 700])
def test_a_replay_takes_the_routing_of_the_moment(tokens):
    arguments = arguments_for(tokens, 8, 32, 256, 128, biases=True)
    leaves, gradient = leaves_of(arguments), gradient_for(arguments)
    wanted = [leaves[name] for name in NAMES if name in leaves]

    def step():
        out = gg_runtime.fused_experts(**leaves)
        return out.detach(), *torch.autograd.grad(out, wanted, gradient)

    stream = torch.cuda.Stream()  # autograd's own threads and streams warm up outside of the capture
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph, made = captured(step)
    for seed in range(4):
        with torch.no_grad():
            of = torch.Generator(device="cuda").manual_seed(seed)
            leaves["topk_ids"].copy_(
                torch.randint(-1, 33, leaves["topk_ids"].shape, device="cuda", generator=of) if seed else 0
            )
            leaves["x"].copy_(torch.randn(leaves["x"].shape, device="cuda", generator=of))
            gradient.copy_(torch.randn(gradient.shape, device="cuda", generator=of))
            for one in made:
                one.fill_(NAN)
        garbage = torch.full((1 << 20,), NAN, device="cuda")
        graph.replay()
        assert all(torch.equal(one, right) for one, right in zip(made, step()))
        del garbage


def test_no_call_waits():
    arguments = arguments_for(700, 8, 32, 256, 128, biases=True)
    leaves, gradient = leaves_of(arguments), gradient_for(arguments)
    assert_no_call_waits({"forward and backward": lambda: gg_runtime.fused_experts(**leaves).backward(gradient)})


def test_what_is_kept_is_x_the_pre_activation_and_the_routing():
    arguments = arguments_for(4096, 8, 64, 1024, 384)
    leaves = leaves_of(arguments)
    gg_runtime.fused_experts(**leaves).sum().backward()
    leaves = leaves_of(arguments)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    out = gg_runtime.fused_experts(**leaves)
    rows = 4096 * 8
    kept = torch.cuda.memory_allocated() - before - out.numel() * 2
    assert kept <= 1.02 * (2 * rows * 768 + 4 * (3 * rows + 64)) + (1 << 20)


class Parameters(torch.nn.Module):
    """Weights as models keep them, [E, columns, rows]."""

    def __init__(self, arguments):
        super().__init__()
        self.up = torch.nn.Parameter(arguments["w1"].mT.clone())
        self.down = torch.nn.Parameter(arguments["w2"].mT.clone())
        for parameter in self.parameters():
            parameter.main_grad = torch.full_like(parameter, 0.5, dtype=torch.float32)

    def forward(self, arguments, function=gg_runtime.fused_experts, **options):
        return function(**arguments | {"w1": self.up.mT, "w2": self.down.mT} | options)


@pytest.mark.parametrize("sizes", [(600, 4, 8, 256, 128), (77, 3, 5, 75, 61)], ids=str)
def test_main_gradients_are_float32_and_added_to(sizes):
    arguments = arguments_for(*sizes)
    experts, gradient = Parameters(arguments), gradient_for(arguments)
    exact = gradients_of(layer, arguments, gradient, torch.float64)
    plain = gradients_of(gg_runtime.fused_experts, arguments, gradient)
    for time in (1, 2):
        out = experts(arguments, gg_runtime.torch.experts.fused_experts, into_main_grad=True)
        out.backward(gradient)
        for parameter, name in ((experts.up, "w1"), (experts.down, "w2")):
            assert parameter.grad is None
            found = (parameter.main_grad.double() - 0.5) / time
            error, usual = ((one - exact[name].mT).norm() for one in (found, plain[name].mT.double()))
            assert error <= usual * 1.05
            torch.testing.assert_close(found, plain[name].mT.double(), rtol=0.01, atol=0.01)
