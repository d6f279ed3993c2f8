"""grouped_mm with a_index, activation, gate_up and preactivation: every activation, order, index and layout."""

import pytest

torch = pytest.importorskip("torch")

import gg_runtime  # noqa: E402
from cases import RAGGED_ARTIFACTS, representatives  # noqa: E402
from oracle import fill_normal  # noqa: E402
from ragged_cases import as_offs, forced, operands  # noqa: E402
from up_projection_oracle import CASES, ORDERS, activated, assert_close, assert_one_rounding, sums  # noqa: E402

SIZES = [0, 33, 1, 0, 130, 7, 0]
ROWS, E, TAIL = sum(SIZES), len(SIZES), 9
DTYPES = [torch.float16, torch.bfloat16]
FORMS = {"KN": (128, 96, False), "NK": (128, 96, True), "odd": (74, 61, False), "wide": (1040, 64, True)}
NAN = float("nan")


def biases(n, dtype):
    return torch.randint(-9, 10, (E, n), device="cuda").to(dtype)


def poisoned(rows, columns, dtype):
    return torch.full((rows, columns), NAN, device="cuda", dtype=dtype)


def random_index(rows, source_rows, dtype=torch.int32):
    """A third of it names no row."""
    return torch.randint(-source_rows // 4, source_rows * 5 // 4, (rows,), device="cuda", dtype=dtype)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("activation", "order"), CASES)
def test_sums_are_activated_and_kept(activation, order, dtype, form):
    n, k, transposed = form
    A, B, offs, kept = operands(SIZES, n, k, dtype, TAIL, transposed)
    bias = biases(n, dtype)
    z = sums(A, B, offs, bias=bias)
    out = poisoned(ROWS + TAIL, activated(z, activation, order).shape[1], dtype)
    given = {"offs": offs, "bias": bias, "activation": activation, "gate_up": order}
    assert gg_runtime.grouped_mm(A, B, out=out, preactivation=kept, **given) is out
    assert torch.equal(kept.double(), z), "small integers are exact"
    assert_one_rounding(out, z, activation, order)
    assert not out[ROWS:].any() and not kept[ROWS:].any()
    assert_one_rounding(gg_runtime.grouped_mm(A, B, **given), z, activation, order)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("activation", "order"), CASES)
def test_sums_that_have_to_be_rounded(activation, order, dtype):
    A, B, offs, _ = operands(SIZES, 128, 96, dtype, TAIL, fill=fill_normal)
    kept = poisoned(ROWS + TAIL, 128, dtype)
    out = gg_runtime.grouped_mm(A, B, offs=offs, activation=activation, gate_up=order, preactivation=kept)
    z = sums(A, B, offs)
    assert_close(out, z, activation, order, relative=1e-5)
    assert ((kept.double() - z).abs() <= z.abs() * torch.finfo(dtype).eps * 0.51 + 1e-5 * (1 + z.abs())).all()
    without = gg_runtime.grouped_mm(A, B, offs=offs, activation=activation, gate_up=order)
    assert_close(without, z, activation, order, relative=1e-5)


@pytest.mark.parametrize("activation", sorted({activation for activation, _ in CASES}))
def test_large_values_neither_overflow_on_the_way_nor_lose_nan(activation):
    values = torch.tensor([0.0, -0.0, 1e-3, -1e-3, 7, -7, 30, -30, 300, -300, 6e4, -6e4, NAN, 1.0], device="cuda")
    z = torch.cartesian_prod(values, values).bfloat16()
    A = torch.zeros(len(z), 16, device="cuda").bfloat16()
    A[:, :2] = z
    B = torch.eye(16, device="cuda").bfloat16()[None]
    B[:, :, 2:] = 0
    out = gg_runtime.grouped_mm(A, B, offs=as_offs([len(z)]), activation=activation, gate_up="interleaved")
    pairs = A.double().nan_to_num(0) @ B[0].double()
    pairs[A.isnan().any(1)] = NAN  # NaN * 0 is NaN in every column
    wanted = activated(pairs, activation, "interleaved")
    assert torch.equal(out.isnan(), wanted.isnan())
    known = ~A.isnan().any(1)
    assert_one_rounding(out[known], pairs[known], activation, "interleaved")


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("activation", [None, "swiglu"])
@pytest.mark.parametrize("integer", [torch.int32, torch.int64], ids=str)
def test_rows_are_picked_by_the_index(integer, activation, form):
    n, k, transposed = form
    A, B, offs, _ = operands(SIZES, n, k, transposed=transposed)
    A = A[:50]
    index = random_index(ROWS + TAIL, 50, integer)
    kept = poisoned(ROWS + TAIL, n, torch.bfloat16) if activation else None
    given = {"offs": offs, "bias": biases(n, torch.bfloat16), "a_index": index, "activation": activation}
    out = gg_runtime.grouped_mm(A, B, preactivation=kept, **given)
    z = sums(A, B, offs, bias=given["bias"], index=index)
    if activation is None:
        assert torch.equal(out.double(), z)
    else:
        assert torch.equal(kept.double(), z)
        assert_one_rounding(out, z, activation)
    assert not out[ROWS:].any()


@pytest.mark.parametrize("integer", [torch.int32, torch.int64], ids=str)
def test_an_index_may_hold_anything(integer):
    A, B, offs, _ = operands(SIZES, 128, 96)
    least, most = torch.iinfo(integer).min, torch.iinfo(integer).max
    index = torch.randint(least, most, (ROWS,), device="cuda", dtype=integer)
    index[::3] = torch.randint(-3, ROWS + 3, index[::3].shape, device="cuda", dtype=integer)
    index[:4] = torch.tensor([least, most, ROWS, -1], dtype=integer)
    out = gg_runtime.grouped_mm(A, B, offs=offs, a_index=index)
    assert torch.equal(out.double(), sums(A, B, offs, index=index))


@pytest.mark.parametrize("rows", [0, 1, 5])
@pytest.mark.parametrize("source_rows", [0, 1, 3])
def test_few_rows_and_none(rows, source_rows):
    A = torch.randint(-3, 4, (source_rows, 64), device="cuda").bfloat16()
    B = torch.randint(-3, 4, (2, 64, 48), device="cuda").bfloat16()
    index = torch.arange(rows, device="cuda", dtype=torch.int32) - 1
    offs = as_offs([rows // 2, rows - rows // 2])
    out = gg_runtime.grouped_mm(A, B, offs=offs, a_index=index, activation="relu2")
    assert out.shape == (rows, 48)
    assert_one_rounding(out, sums(A, B, offs, index=index), "relu2")


def test_nan_in_rows_that_nobody_asked_for_stays_out():
    A, B, offs, _ = operands(SIZES, 128, 96)
    index = random_index(ROWS, ROWS)
    z = sums(A, B, offs, index=index)
    used = torch.zeros(ROWS, dtype=torch.bool, device="cuda")
    used[index[(index >= 0) & (index < ROWS)].long()] = True
    A[~used] = NAN
    assert torch.equal(gg_runtime.grouped_mm(A, B, offs=offs, a_index=index).double(), z)
    assert_one_rounding(gg_runtime.grouped_mm(A, B, offs=offs, a_index=index, activation="geglu"), z, "geglu")


def test_what_lies_behind_the_last_end_is_not_multiplied():
    A, B, offs, _ = operands(SIZES, 128, 96, tail=TAIL)
    A[ROWS:] = NAN
    kept = poisoned(ROWS + TAIL, 128, torch.bfloat16)
    out = gg_runtime.grouped_mm(A, B, offs=offs, activation="swiglu_oai", preactivation=kept)
    assert not out[ROWS:].any() and not kept[ROWS:].any() and not out.isnan().any()
    index = torch.arange(ROWS + TAIL, device="cuda")
    out = gg_runtime.grouped_mm(A, B, offs=offs, a_index=index, activation="swiglu_oai", preactivation=kept)
    assert not out[ROWS:].any() and not kept[ROWS:].any() and not out.isnan().any()


OFFS = [[-5, 4, 2, 500, 7, 7, 7], [9, 3, 12, 11, 0, 180, 20], [2**31 - 1, -(2**31), 7, 0, 0, 0, 0], [0] * E]


@pytest.mark.parametrize("ends", OFFS, ids=str)
def test_offs_may_hold_anything(ends):
    A, B, _, _ = operands(SIZES, 128, 96, tail=TAIL)
    offs = torch.tensor(ends, dtype=torch.int32, device="cuda")
    index = random_index(ROWS + TAIL, ROWS + TAIL)
    out = gg_runtime.grouped_mm(A, B, offs=offs, a_index=index, activation="gelu_tanh")
    assert_one_rounding(out, sums(A, B, offs, index=index), "gelu_tanh")


LAYOUTS = {
    "rows contiguous": lambda x: x.t().contiguous().t(),
    "within a wider one": lambda x: wider(x, 3),
    "rows on 16 bytes": lambda x: wider(x, 8),
    "every second column": lambda x: wider(x.repeat_interleave(2, 1), 0)[:, ::2],
}


def wider(x, by):
    """The same values, in NaN."""
    around = torch.full((len(x) + 2, x.shape[1] + 2 * by), NAN, device="cuda", dtype=x.dtype)
    around[1:-1, by : by + x.shape[1]] = x
    return around[1:-1, by : by + x.shape[1]]


@pytest.mark.parametrize("of_a", LAYOUTS)
@pytest.mark.parametrize("of_out", LAYOUTS)
@pytest.mark.parametrize("activation", ["swiglu", "silu"])
def test_views_are_read_and_written_where_they_lie(activation, of_out, of_a):
    A, B, offs, _ = operands(SIZES, 128, 96)
    index, order = random_index(ROWS, ROWS), "interleaved"
    z = sums(A, B, offs, index=index)
    out = LAYOUTS[of_out](poisoned(*activated(z, activation, order).shape, torch.bfloat16))
    given = {"offs": offs, "activation": activation, "gate_up": order}
    gg_runtime.grouped_mm(LAYOUTS[of_a](A), B, a_index=index, out=out, **given)
    assert_one_rounding(out, z, activation, order)


@pytest.mark.parametrize("pad", [3, 8])
@pytest.mark.parametrize("order", ORDERS)
def test_nothing_is_written_beside_the_output_and_the_preactivation(order, pad):
    A, B, offs, _ = operands(SIZES, 128, 96, tail=TAIL)
    rows = ROWS + TAIL
    around = {n: torch.full((rows + 2, n + 2 * pad), 77.0, device="cuda", dtype=torch.bfloat16) for n in (64, 128)}
    out, kept = (around[n][1:-1, pad : pad + n] for n in (64, 128))
    gg_runtime.grouped_mm(A, B, offs=offs, activation="geglu_tanh", gate_up=order, out=out, preactivation=kept)
    z = sums(A, B, offs)
    assert torch.equal(kept.double(), z)
    assert_one_rounding(out, z, "geglu_tanh", order)
    for n, whole in around.items():
        whole[1:-1, pad : pad + n] = 77.0
        assert whole.eq(77.0).all()


@pytest.mark.parametrize("artifact", representatives("bf16", RAGGED_ARTIFACTS), ids=lambda artifact: artifact["name"])
def test_each_kernel_of_products_takes_part(artifact):
    A, B, offs, _ = operands(SIZES, 128, 96, tail=-ROWS % 8)  # whole 16 bytes of rows
    if artifact["layout"][0] == "t":
        A = A.t().contiguous().t()
    if artifact["layout"] in ("nt", "tt"):
        B = B.mT.contiguous().mT
    out = forced(artifact, A, B, offs=offs, activation="swiglu", gate_up="up_first")
    assert_one_rounding(out, sums(A, B, offs), "swiglu", "up_first")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_products_of_e4m3_are_activated(dtype):
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("fp8 needs a GPU of compute capability 9.0")
    A = torch.randint(-2, 3, (ROWS, 64), device="cuda").float().to(torch.float8_e4m3fn)
    B = torch.randint(-2, 3, (E, 32, 64), device="cuda").float().to(torch.float8_e4m3fn).mT
    offs, scale = as_offs(SIZES), torch.tensor([0.5], device="cuda")
    kept = poisoned(ROWS, 32, dtype)
    given = {"offs": offs, "scale_a": scale, "activation": "swiglu", "preactivation": kept}
    out = gg_runtime.grouped_mm(A, B, out_dtype=dtype, **given)
    z = sums(A, B, offs) / 2
    assert torch.equal(kept.double(), z)
    assert_one_rounding(out, z, "swiglu")


def test_gathered_rows_past_two_gigabytes():
    rows, k, source = 300000, 8192, 5000
    A = torch.randint(-2, 3, (source, k), device="cuda").bfloat16()
    B = torch.randint(-2, 3, (2, k, 16), device="cuda").bfloat16()
    A[:, 64:] = 0
    index = torch.randint(0, source, (rows,), device="cuda")
    offs = as_offs([1000, rows - 1000])
    out = gg_runtime.grouped_mm(A, B, offs=offs, a_index=index, activation="relu")
    picked = torch.tensor([0, 999, 1000, 131072, 262144, rows - 1], device="cuda")
    groups = (picked >= 1000).long()
    z = torch.einsum("rk,rkn->rn", A[index[picked]].double(), B[groups].double())
    assert_one_rounding(out[picked], z, "relu")


def test_a_preactivation_past_two_gigabytes():
    rows, n = 300000, 8192
    A = torch.randint(-2, 3, (rows, 8), device="cuda").bfloat16()
    B = torch.randint(-2, 3, (1, 8, n), device="cuda").bfloat16()
    z = torch.full((rows, n), float("nan"), device="cuda", dtype=torch.bfloat16)
    given = {"offs": as_offs([rows]), "activation": "swiglu", "gate_up": "up_first", "preactivation": z}
    out = gg_runtime.grouped_mm(A, B, **given)
    picked = torch.tensor([0, 131072, 262143, 262144, rows - 1], device="cuda")
    right = A[picked].double() @ B[0].double()
    assert torch.equal(z[picked].double(), right) and not z.isnan().any()
    assert_one_rounding(out[picked], right, "swiglu", "up_first")
