"""activation_gradient: the kernel in Triton's interpreter, the CPU path beside torch, and what it refuses."""

import pytest
from activation_formulas import CASES, GATED
from interpreted import run_interpreted

import gg_runtime
from aot.spec.abi import ACTIVATIONS
from gg_runtime.activation_gradient import activation_gradient
from gg_runtime.down_gradient import down_gradient

torch = pytest.importorskip("torch")

from experts_oracle import activate  # noqa: E402

ALL = [(None, "gate_first"), *CASES]


def interpret(*cases: dict) -> None:
    run_interpreted("gradient", cases)


@pytest.mark.compiler
@pytest.mark.parametrize("activation", [None, *ACTIVATIONS[1:]])
def test_the_kernel_goes_back_through_every_activation(activation):
    forms = ({"aligned": True, "columns": 40}, {"aligned": False, "columns": 19, "step": 2})
    orders = [order for known, order in ALL if known == activation]
    cases = [{"rows": 6, "activation": activation, "gate_order": order, **form} for order in orders for form in forms]
    interpret(*cases, *({**case, "keeps": False} for case in cases[:1]))


@pytest.mark.compiler
@pytest.mark.parametrize("activation", ["swiglu", "swiglu_oai"])
def test_the_kernel_goes_back_through_limits(activation):
    case = {"rows": 6, "columns": 24, "activation": activation, "gate_order": "gate_first", "aligned": True}
    interpret(*({**case, "swiglu_limit": limit} for limit in (1, 7, 1e6)))


@pytest.mark.compiler
def test_the_kernel_weighs_rows_and_writes_the_gradients_of_weights_to_their_slots():
    case = {"rows": 6, "columns": 24, "activation": "swiglu", "gate_order": "gate_first", "aligned": True}
    slots = [6, 0, -1, 2, 7, 5]  # the third and the fifth are none
    interpret({**case, "weights": [0.5, 2, 4, -1, 3, 8, 0.25], "slots": slots, "entries": 7})
    interpret({**case, "slots": slots, "entries": 7})


@pytest.mark.compiler
def test_the_kernel_leaves_rows_behind_the_last_end_alone():
    case = {"rows": 11, "columns": 24, "activation": "geglu", "gate_order": "interleaved", "aligned": True}
    interpret(*({**case, "ends": ends} for ends in ([2, 6], [0, 0], [3, 11], [4, 90], [0, -3])))


@pytest.mark.compiler
def test_row_sums_are_added_up_in_the_order_of_the_tiles_and_go_to_their_slots():
    case = {"rows": 6, "tiles": 5, "slots": [6, 0, -1, 2, 7, 5], "entries": 7}  # the third and the fifth are none
    interpret(case, {**case, "tiles": 1}, *({**case, "ends": ends} for ends in ([2, 4], [0, 0], [3, 90], [0, -3])))


def operands(activation, rows=9, columns=12, dtype=torch.bfloat16, seed=0):
    """z, dh, weights and slots of rows; z on the clamps of swiglu_oai and past them too."""
    torch.manual_seed(seed)
    z = (torch.randn(rows, columns * (2 if activation in GATED else 1)) * 4).to(dtype)
    z[1] = torch.tensor([7, -7, 7.5, -7.5, 1, -1]).repeat(z.shape[1] // 6)
    slots = torch.randperm(rows + 3)[:rows].int()
    return z, torch.randn(rows, columns).to(dtype), torch.rand(3, rows // 3 + 1), slots


def by_torch(z, dh, weights, slots, activation, order, scale, swiglu_limit=None):
    """dz, h and dweights by torch's autograd, in float64."""
    z, weights = z.double().requires_grad_(), weights.double().requires_grad_()
    h = scale * weights.reshape(-1)[slots.long(), None] * activate(z, activation, order, swiglu_limit)
    h.backward(dh.double())
    return z.grad, h.detach(), weights.grad


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("activation", "order"), ALL)
def test_the_cpu_goes_back_through_every_activation(activation, order, dtype):
    z, dh, weights, slots = operands(activation, dtype=dtype)
    dz, h, of_weights = torch.full_like(z, float("nan")), torch.full_like(dh, float("nan")), torch.zeros_like(weights)
    given = {"activation": activation, "gate_up": order, "weights": weights, "slot": slots, "scale": 0.5}
    activation_gradient(z, dh, dz, h=h, dweights=of_weights, **given)
    wanted = by_torch(z, dh, weights, slots, activation, order, 0.5)
    unit = torch.finfo(dtype).eps
    for made, right in zip((dz, h), wanted):
        torch.testing.assert_close(made.double(), right, rtol=unit, atol=1e-6)
    torch.testing.assert_close(of_weights.double(), wanted[2], rtol=1e-5, atol=1e-5)
    alone = torch.full_like(z, float("nan"))
    activation_gradient(z, dh, alone, **given)
    assert torch.equal(alone, dz)


@pytest.mark.parametrize("limit", [0.5, 1, 7.5, float("inf")])
@pytest.mark.parametrize("activation", ["swiglu", "swiglu_oai"])
def test_the_cpu_goes_back_through_limits(activation, limit):
    z, dh, weights, slots = operands(activation)
    dz, h = torch.full_like(z, float("nan")), torch.full_like(dh, float("nan"))
    activation_gradient(z, dh, dz, activation=activation, swiglu_limit=limit, weights=weights, slot=slots, h=h)
    wanted = by_torch(z, dh, weights, slots, activation, "gate_first", 1.0, limit)
    for made, right in zip((dz, h), wanted):
        torch.testing.assert_close(made.double(), right, rtol=torch.finfo(z.dtype).eps, atol=1e-6)


@pytest.mark.parametrize("activation", ["swiglu", "geglu_tanh", "swiglu_oai", "relu2", "gelu"])
def test_numpy_gives_what_torch_gives(activation):
    z, dh, weights, slots = operands(activation, dtype=torch.float16)
    made = []
    for of in (lambda tensor: tensor, lambda tensor: tensor.numpy()):
        arrays = [of(tensor) for tensor in (z, dh, torch.zeros_like(z), torch.zeros_like(dh), torch.zeros(3, 4))]
        activation_gradient(
            *arrays[:3], activation=activation, weights=of(weights), slot=of(slots), h=arrays[3], dweights=arrays[4]
        )
        made.append([torch.as_tensor(array) for array in arrays[2:]])
    for x, y in zip(*made):
        torch.testing.assert_close(x, y, rtol=2e-3, atol=1e-5)


def test_rows_behind_the_last_end_and_slots_that_are_none_are_left_alone():
    z, dh, weights, slots = operands("swiglu")
    z[6:], dh[6:], slots[2] = float("nan"), float("nan"), -1
    dz, h, of_weights = torch.full_like(z, 5), torch.full_like(dh, 5), torch.full_like(weights, 5)
    ends = torch.tensor([1, 6], dtype=torch.int32)
    activation_gradient(
        z, dh, dz, activation="swiglu", weights=weights, slot=slots, ends=ends, h=h, dweights=of_weights
    )
    assert dz[6:].eq(5).all() and h[6:].eq(5).all() and not dz[2].any() and not h[2].any()
    assert dz[:6].isfinite().all() and sorted(of_weights.ne(5).reshape(-1).nonzero()[:, 0].tolist()) == sorted(
        slots[[0, 1, 3, 4, 5]].tolist()
    )


Z, DH, WEIGHTS, SLOT = operands("swiglu")
DZ = torch.zeros_like(Z)
REFUSALS = {
    "float32": (TypeError, {"z": Z.float()}, ["z", "float32", "float16 or bfloat16"]),
    "another dtype": (TypeError, {"dh": DH.half()}, ["dh", "float16", "bfloat16"]),
    "no up": (ValueError, {"z": Z[:, :12]}, ["z", "[9, 12]", "[9, 24]", "gated"]),
    "a gate too many": (ValueError, {"activation": "silu"}, ["z", "[9, 24]", "[9, 12] is needed"]),
    "other rows": (ValueError, {"z": Z[:8]}, ["z", "[8, 24]", "[9, 24]"]),
    "slots of 64 bits": (TypeError, {"slot": SLOT.long()}, ["slot", "int64", "int32"]),
    "slots of other rows": (ValueError, {"slot": SLOT[:8]}, ["slot", "[8]", "9 rows"]),
    "weights and no slots": (ValueError, {"slot": None}, ["weights", "slot, which is missing"]),
    "weights in one dimension": (ValueError, {"weights": WEIGHTS[0]}, ["weights", "1 dimension", "2"]),
    "gradients of other weights": (ValueError, {"dweights": torch.zeros(4, 3)}, ["dweights", "[4, 3]", "[3, 4]"]),
    "gradients of 16 bits": (TypeError, {"dweights": WEIGHTS.half()}, ["dweights", "float16", "float32"]),
    "no ends": (ValueError, {"ends": torch.zeros(0, dtype=torch.int32)}, ["ends", "is empty"]),
    "an output that is a number": (ValueError, {"dz": Z[0, 0].clone()}, ["dz", "0 dimensions"]),
    "an output that is z": (ValueError, {"dz": Z}, ["dz", "shares memory with z"]),
    "two outputs in one": (ValueError, {"h": DZ[:, :12]}, ["shares memory with"]),
    "an output of another size": (ValueError, {"h": torch.zeros_like(Z)}, ["h", "[9, 24]", "[9, 12]"]),
    "an unknown activation": (ValueError, {"activation": "tanh"}, ["activation is 'tanh'"]),
}


@pytest.mark.parametrize(("kind", "given", "words"), REFUSALS.values(), ids=REFUSALS)
def test_activation_gradient_refuses(kind, given, words):
    arguments = {"z": Z, "dh": DH, "dz": DZ, "activation": "swiglu", "weights": WEIGHTS, "slot": SLOT} | given
    with pytest.raises(kind) as caught:
        activation_gradient(**arguments)
    assert all(word in str(caught.value) for word in ["activation_gradient", *words]), str(caught.value)


def test_the_down_gradient_is_that_of_the_product_and_of_the_activation():
    """On the CPU, beside the two calls."""
    z, dh, weights, slots = operands("swiglu")
    gradient, weight = torch.randn(5, 16).bfloat16(), torch.randn(3, 16, 12).bfloat16()
    token, ends = torch.tensor([0, 4, 2, -1, 5, 1, 1, 3, 0]), torch.tensor([4, 4, 8], dtype=torch.int32)
    given = {"activation": "swiglu", "weights": weights, "slot": slots, "scale": 0.5, "ends": ends}
    made = []
    for fused in (True, False):
        dz, h, of_weights = torch.full_like(z, 5), torch.full_like(dh, 5), torch.full_like(weights, 5)
        if fused:
            down_gradient(gradient, weight, z, dz, token=token, h=h, dweights=of_weights, **given)
        else:
            product = gg_runtime.grouped_mm(gradient, weight, offs=ends, a_index=token)
            activation_gradient(z, product, dz, h=h, dweights=of_weights, **given)
        made.append((dz, h, of_weights))
    for found, right in zip(*made):
        assert torch.equal(found, right)
    assert made[0][0][8].eq(5).all() and not made[0][0][3].any()


DOWN_REFUSALS = {
    "another dtype": (TypeError, {"z": Z.half()}, ["z has float16"]),
    "rows of another number": (ValueError, {"token": torch.zeros(8, dtype=torch.int32)}, ["[9, 24]", "[8, 12]"]),
    "no up": (ValueError, {"z": Z[:, :12].clone()}, ["z", "[9, 12]", "[9, 24]", "gated"]),
    "a weight of other columns": (ValueError, {"weight": torch.zeros(3, 16, 10).bfloat16()}, ["[9, 24]", "[9, 10]"]),
    "a gradient of other columns": (ValueError, {"gradient": torch.zeros(5, 17).bfloat16()}, ["17", "16"]),
}


@pytest.mark.parametrize(("kind", "given", "words"), DOWN_REFUSALS.values(), ids=DOWN_REFUSALS)
def test_down_gradient_refuses(kind, given, words):
    arguments = {
        "gradient": torch.zeros(5, 16).bfloat16(), "weight": torch.zeros(3, 16, 12).bfloat16(), "z": Z, "dz": DZ,
        "ends": torch.tensor([2, 4, 9], dtype=torch.int32), "token": torch.zeros(9, dtype=torch.int32), "slot": SLOT,
        "weights": WEIGHTS, "activation": "swiglu",
    }  # fmt: skip
    with pytest.raises(kind) as caught:
        down_gradient(**arguments | given)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_down_gradient_writes_over_nothing_that_the_product_reads():
    gradient = torch.zeros(9, 24).bfloat16()
    with pytest.raises(ValueError, match="down_gradient: dz shares memory with gradient"):
        down_gradient(
            gradient, torch.zeros(3, 24, 12).bfloat16(), Z, gradient, ends=torch.tensor([2, 4, 9], dtype=torch.int32),
            token=torch.zeros(9, dtype=torch.int32), slot=SLOT, weights=WEIGHTS, activation="swiglu",
        )  # fmt: skip


@pytest.mark.parametrize("activation", ["relu", "relu2"])
def test_the_slope_of_relu_at_0_is_0_as_in_torch(activation):
    z, dh = torch.tensor([[0.0, -0.0, 1.0, -1.0]]).half(), torch.ones(1, 4).half()
    dz = torch.full_like(z, 5)
    activation_gradient(z, dh, dz, activation=activation)
    assert dz.tolist() == [[0, 0, 1 if activation == "relu" else 2, 0]]


def test_the_slope_of_gelu_s_tanh_form_is_finite_where_squares_are_not():
    z, dh = torch.tensor([[1e30, -1e30, 3e38, -3e38]]).bfloat16(), torch.ones(1, 4).bfloat16()
    dz = torch.full_like(z, 5)
    activation_gradient(z, dh, dz, activation="gelu_tanh")
    assert dz.tolist() == [[1, 0, 1, 0]]


def test_weights_of_no_slots_are_those_of_no_row():
    z = torch.ones(2, 4).bfloat16()
    dz = torch.full_like(z, 5)
    slot = torch.full((2,), -1, dtype=torch.int32)
    activation_gradient(z, z.clone(), dz, activation="silu", weights=torch.ones(3, 0), slot=slot)
    assert not dz.any()


@pytest.mark.parametrize("place", [-1, 12, 2**31 - 1])
def test_a_row_of_a_slot_that_is_not_there_has_the_weight_0(place):
    z, dh, weights, slots = operands("swiglu")
    slots[4] = place
    dz, h, of_weights = torch.full_like(z, 5), torch.full_like(dh, 5), torch.full_like(weights, 5)
    activation_gradient(z, dh, dz, activation="swiglu", weights=weights, slot=slots, h=h, dweights=of_weights)
    assert not dz[4].any() and not h[4].any() and dz[:4].any(1).all()
    assert sorted(of_weights.ne(5).reshape(-1).nonzero()[:, 0].tolist()) == sorted(set(slots.tolist()) - {place})


@pytest.mark.parametrize(("ends", "written"), [([0, -3], 0), ([4, 90], 9), ([2, 6], 6)])
def test_the_last_end_is_taken_for_none_or_for_all_rows_on_the_cpu_too(ends, written):
    z, dh, weights, slots = operands("swiglu")
    dz, of_weights = torch.full_like(z, 5), torch.full_like(weights, 5)
    given = {"activation": "swiglu", "weights": weights, "slot": slots, "ends": torch.tensor(ends, dtype=torch.int32)}
    activation_gradient(z, dh, dz, dweights=of_weights, **given)
    assert dz[written:].eq(5).all() and dz[:written].ne(5).all() and int(of_weights.ne(5).sum()) == written
