"""The down gradient back through the activation, in one kernel and by parts, against float64; bits, memory, graphs."""

import itertools
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")

from capture import captured  # noqa: E402
from experts_oracle import ACTIVATIONS, GATE_ORDERS, GATED, activate  # noqa: E402
from gg_runtime.down_gradient import down_gradient  # noqa: E402

NAN = float("nan")
DTYPES = [torch.float16, torch.bfloat16]
SCALE = 0.5
TOKENS, SLOTS = 61, 4


@pytest.fixture(autouse=True)
def has_the_kernel():
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("the kernel that does all of it is for sm_90")


class Case(NamedTuple):
    gradient: Any
    weight: Any
    z: Any
    token: Any
    slot: Any
    weights: Any
    ends: Any
    written: int
    activation: str
    order: str

    def given(self) -> dict[str, Any]:
        return {
            "ends": self.ends, "token": self.token, "slot": self.slot, "weights": self.weights, "scale": SCALE,
            "activation": self.activation, "gate_up": self.order,
        }  # fmt: skip

    def outputs(self, fill: float = NAN) -> tuple[Any, Any, Any]:
        rows, columns = self.z.shape[0], self.weight.shape[2]
        of_weights = torch.full(self.weights.shape, fill, device="cuda", dtype=torch.float32)
        return torch.full_like(self.z, fill), self.z.new_full((rows, columns), fill), of_weights

    def run(self, fill: float = NAN, **options: Any) -> tuple[Any, Any, Any]:
        dz, h, of_weights = self.outputs(fill)
        down_gradient(
            self.gradient,
            self.weight,
            self.z,
            dz,
            h=h,
            dweights=of_weights,
            **self.given(),
            **{"fused": True} | options,
        )
        return dz, h, of_weights

    def own(self) -> Any:
        """Which slots have a gradient."""
        own = torch.zeros(self.weights.numel(), dtype=torch.bool, device="cuda")
        slot = self.slot[: self.written]
        own[slot[(slot >= 0) & (slot < len(own))].long()] = True
        return own.reshape(self.weights.shape)


def make(
    sizes=(0, 130, 1, 200, 77, 0, 64), hidden=192, columns=320, *, activation="swiglu", order="gate_first",
    dtype=torch.bfloat16, layout="nt", index=torch.int32, weight_dtype=torch.float32, behind=9, seed=0,
) -> Case:  # fmt: skip
    """Rows behind the last end, whose z is NaN; a token of each row, some of nobody; slots of nobody."""
    of = torch.Generator(device="cuda").manual_seed(seed)
    written = sum(sizes)
    rows = written + behind

    def normal(*shape: int) -> Any:
        return torch.randn(shape, device="cuda", generator=of).to(dtype)

    weight = normal(len(sizes), columns, hidden).mT if layout == "nt" else normal(len(sizes), hidden, columns)
    z = normal(rows, columns * (2 if activation in GATED else 1)) * 4
    z[1, :6] = torch.tensor([7, -7, 7.5, -7.5, 1, -1])
    z[written:] = NAN
    token = torch.randint(0, TOKENS, (rows,), device="cuda", generator=of, dtype=index)
    token[3], token[4] = -1, TOKENS
    slots = -(-rows // SLOTS) + 5
    slot = torch.randperm(slots * SLOTS, device="cuda", generator=of)[:rows].int()
    slot[5], slot[6] = -1, slots * SLOTS
    weights = torch.rand(slots, SLOTS, device="cuda", generator=of).to(weight_dtype)
    ends = torch.tensor(sizes, device="cuda").cumsum(0).int()
    return Case(normal(TOKENS, hidden) / 8, weight, z, token, slot, weights, ends, written, activation, order)


def exact(case: Case) -> tuple[Any, Any, Any]:
    """dz, h and the gradients of weights in float64, of the rows that are written."""
    written, token, slot = case.written, case.token[: case.written].long(), case.slot[: case.written].long()
    known = ((token >= 0) & (token < TOKENS))[:, None]
    rows = torch.where(known, case.gradient.double()[token.clamp(0, TOKENS - 1)], 0.0)
    dh = torch.cat(
        [
            rows[start:end] @ case.weight[group].double()
            for group, (start, end) in enumerate(zip([0, *case.ends.tolist()], case.ends.tolist()))
        ]
    )
    z, weights = case.z[:written].double().requires_grad_(), case.weights.double().requires_grad_()
    has_slot = (slot >= 0) & (slot < weights.numel())
    factor = torch.where(has_slot, weights.reshape(-1)[slot.clamp(0, weights.numel() - 1)], 0.0)
    h = SCALE * factor[:, None] * activate(z, case.activation, case.order)
    h.backward(dh)
    return z.grad, h.detach(), weights.grad


def assert_right(case: Case, found: tuple[Any, Any, Any], fill: float = NAN, rounded: float = 1) -> None:
    """`rounded`: roundings of dh itself, which parts have."""
    dz, h, of_weights = found
    unit = torch.finfo(case.z.dtype).eps
    of_z, of_h, right = exact(case)
    for name, made, want in (("dz", dz, of_z), ("h", h, of_h)):
        left = made[case.written :]
        assert left.isnan().all() if fill != fill else left.eq(fill).all(), f"{name} is written behind the last end"
        near = {"rtol": (1 + rounded) * unit, "atol": (1 + rounded) * unit * float(want.abs().max()) / 256}
        torch.testing.assert_close(
            made[: case.written].double(), want, **near, msg=lambda text, name=name: f"{name}: {text}"
        )
    own = case.own()
    assert of_weights.isnan().logical_xor(own).all() if fill != fill else of_weights[~own].eq(fill).all()
    scale = float(right.abs().max())
    near = {"rtol": 1e-4 + rounded * unit, "atol": scale * (1e-4 + rounded * unit)}
    torch.testing.assert_close(of_weights[own].double(), right[own], **near)


@pytest.mark.parametrize("layout", ["nt", "nn"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("order", GATE_ORDERS[:2])
def test_one_kernel_goes_back_through_swiglu(order, dtype, layout):
    case = make(order=order, dtype=dtype, layout=layout)
    assert_right(case, case.run())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("activation", "order"),
    [(one, order) for one in ACTIVATIONS for order in (GATE_ORDERS if one in GATED else ["gate_first"])],
)
def test_parts_go_back_through_every_activation(activation, order, dtype):
    case = make(activation=activation, order=order, dtype=dtype)
    assert_right(case, case.run(fused=False))
    assert_right(case, case.run(fused=None))


@pytest.mark.parametrize("columns", [8, 72, 256, 264, 768])
@pytest.mark.parametrize("hidden", [8, 72, 512, 1536, 2048])
def test_every_size_of_a_tile(columns, hidden):
    """Columns and k-tiles that do not fill one."""
    case = make(hidden=hidden, columns=columns)
    assert_right(case, case.run())


@pytest.mark.parametrize("columns", [256, 1024])
def test_a_cta_has_several_tiles(columns):
    """What a tile's rows need is written while that of the tile before is read. Groups of all sizes, some empty; one
    k-tile, and five."""
    sizes = [*torch.randint(0, 700, (90,), generator=torch.Generator().manual_seed(3)).tolist(), 0, 5000, 0, 0]
    for hidden in (8, 320):
        case = make(sizes, hidden=hidden, columns=columns)
        assert_right(case, case.run(fill=5), fill=5)


@pytest.mark.parametrize(
    "sizes", [(1,), (127,), (128,), (129,), (0, 0, 300), (63, 65, 0, 1), (7,) * 140, (3000, 0, 20, 50000)], ids=str
)
def test_every_split_of_the_rows(sizes):
    case = make(sizes)
    assert_right(case, case.run(fill=5), fill=5)


@pytest.mark.parametrize("weight_dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
def test_indices_and_weights_of_each_type(index, weight_dtype):
    case = make(index=index, weight_dtype=weight_dtype)
    assert_right(case, case.run())


def test_rows_lie_anywhere():
    case = make()
    want = case.run()
    written = case.written
    wide = [torch.full((one.shape[0], one.shape[1] + 24), NAN, device="cuda", dtype=one.dtype) for one in want[:2]]
    views = [one[:, 8:-16] for one in wide]
    z = torch.full((case.z.shape[0], case.z.shape[1] + 8), NAN, device="cuda", dtype=case.z.dtype)
    z[:, :-8] = case.z
    gradient = torch.full((TOKENS, case.gradient.shape[1] + 8), NAN, device="cuda", dtype=case.z.dtype)
    gradient[:, 8:] = case.gradient
    down_gradient(
        gradient[:, 8:], case.weight, z[:, :-8], views[0], h=views[1], dweights=torch.empty_like(want[2]), fused=True,
        **case.given(),
    )  # fmt: skip
    for view, right, around in zip(views, want, wide):
        assert torch.equal(view[:written], right[:written])
        assert around[written:].isnan().all() and around[:, :8].isnan().all() and around[:, -16:].isnan().all()


def test_what_nobody_wants_is_not_written():
    case = make()
    want = case.run()
    dz = torch.full_like(case.z, NAN)
    down_gradient(case.gradient, case.weight, case.z, dz, fused=True, **case.given())
    assert torch.equal(dz[: case.written], want[0][: case.written]) and dz[case.written :].isnan().all()


def test_the_bits_of_a_row_are_its_own():
    """Whatever rows its group has besides, from run to run, and on another stream."""
    case = make()
    first = case.run(fill=0)
    for _ in range(5):
        assert all(torch.equal(x, y) for x, y in zip(case.run(fill=0), first))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        beside = case.run(fill=0)
    here = case.run(fill=0)
    torch.cuda.synchronize()
    assert all(torch.equal(x, y) and torch.equal(z, y) for x, z, y in zip(beside, here, first))
    start, end = case.ends[2].item(), case.ends[3].item()
    alone = case._replace(
        z=case.z[start:end], token=case.token[start:end], slot=case.slot[start:end], weight=case.weight[3:4],
        ends=torch.tensor([end - start], device="cuda", dtype=torch.int32), written=end - start,
    )  # fmt: skip
    dz, h, of_weights = alone.run(fill=0)
    assert torch.equal(dz, first[0][start:end]) and torch.equal(h, first[1][start:end])
    assert torch.equal(of_weights[alone.own()], first[2][alone.own()])


def test_a_replay_takes_the_ends_of_the_moment():
    cases = [
        make(sizes) for sizes in [(0, 130, 1, 200, 77, 0, 64), (64, 64, 64, 64, 64, 64, 88), (472, 0, 0, 0, 0, 0, 0)]
    ]
    case = cases[0]
    outputs = case.outputs(0)

    def step():
        for one in outputs:
            one.zero_()
        down_gradient(
            case.gradient,
            case.weight,
            case.z,
            outputs[0],
            h=outputs[1],
            dweights=outputs[2],
            fused=True,
            **case.given(),
        )
        return outputs

    step()
    graph, made = captured(step)
    for other in cases:
        case.ends.copy_(other.ends)
        graph.replay()
        found = [one.clone() for one in made]
        assert all(torch.equal(one, right) for one, right in zip(found, step()))


def test_nan_of_a_row_stays_in_it():
    case = make()
    want = case.run(fill=0)
    case.z[40, 3] = NAN
    dz, h, _ = case.run(fill=0)
    assert dz[40].isnan().any() and h[40, 3].isnan()
    rest = torch.arange(case.written, device="cuda") != 40
    for found, right in ((dz, want[0]), (h, want[1])):
        assert torch.equal(found[: case.written][rest], right[: case.written][rest])


def test_garbage_reaches_nothing():
    """Ends that fall, are negative or too large count as the nearest that rise within the rows. Where they fall, fewer
    gradients of weights are written."""
    case = make()
    rows = len(case.z)
    for ends in ([-5, 100, 3, 2**31 - 1, -(2**31), 0, 10], [2**31 - 1] * 7, [-1] * 7):
        case.ends.copy_(torch.tensor(ends, dtype=torch.int32))
        found = case.run(fill=0)
        case.ends.copy_(torch.tensor(list(itertools.accumulate((min(max(end, 0), rows) for end in ends), max))))
        last = -1 if ends[-1] < max(ends) else None
        for one, right in zip(found[:last], case.run(fill=0)):
            torch.testing.assert_close(one, right, rtol=0, atol=0, equal_nan=True)
