"""grouped_mm of ragged columns, ragged K and stacks on the CPU, against float64: what the device's sizes may be."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gg_runtime
from gg_runtime.reference.activations import GATED

try:
    import torch
except ImportError:
    torch = None

FRAMEWORKS = ["numpy"] + ["torch"] * (torch is not None)
GROUPS, M, N, K = 4, 5, 7, 9
TOTAL = 20  # columns, or K of all groups
OFFS = [[5, 10, 15, 20], [0, 0, 20, 20], [3, 3, 9, 9], [0, 0, 0, 0], [20, 20, 20, 20],
        [-5, 4, 2, 50], [2**31 - 1, -(2**31), 7, 0], [9, 3, 12, 11]]  # fmt: skip
near = {"rtol": 2e-3, "atol": 4e-3}  # of float16


def of(framework: str, values: np.ndarray):
    return values if framework == "numpy" else torch.from_numpy(values)


def random(*shape, seed=0, dtype=np.float16) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


def spans(offs, total: int) -> list[tuple[int, int]]:
    """(start, end) of each group, as the kernels clamp them."""
    ends = np.minimum(np.maximum.accumulate(np.maximum(np.asarray(offs, np.int64), 0)), total).tolist()
    return list(zip([0, *ends], ends))


def of_columns(a: np.ndarray, b: np.ndarray, offs) -> np.ndarray:
    product = np.zeros((a.shape[1], b.shape[1]))
    for group, (start, end) in enumerate(spans(offs, b.shape[1])):
        product[:, start:end] = a[group].astype(np.float64) @ b[:, start:end].astype(np.float64)
    return product


def of_k(a: np.ndarray, b: np.ndarray, offs) -> np.ndarray:
    parts = [a[:, i:j].astype(np.float64) @ b[i:j].astype(np.float64) for i, j in spans(offs, b.shape[0])]
    return np.stack(parts)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("offs", OFFS, ids=str)
def test_columns_are_those_of_the_matrix_of_their_group(framework, offs):
    a, b, ends = random(GROUPS, M, K), random(K, TOTAL), np.array(offs, np.int32)
    out = gg_runtime.grouped_mm(of(framework, a), of(framework, b), offs=of(framework, ends))
    assert type(out) is type(of(framework, a)) and np.asarray(out).dtype == np.float16
    np.testing.assert_allclose(np.asarray(out), of_columns(a, b, offs), **near)
    assert not np.asarray(out)[:, spans(offs, TOTAL)[-1][1] :].any(), "columns past the last end are zeros"


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("out_dtype", ["float16", "float32"])
@pytest.mark.parametrize("offs", OFFS, ids=str)
def test_ragged_k_is_summed_by_group(framework, offs, out_dtype):
    a, b, ends = random(M, TOTAL), random(TOTAL, N), np.array(offs, np.int32)
    arrays = [of(framework, array) for array in (a, b)]
    out = gg_runtime.grouped_mm(*arrays, offs=of(framework, ends), out_dtype=out_dtype)
    assert tuple(out.shape) == (GROUPS, M, N) and np.asarray(out).dtype == out_dtype
    np.testing.assert_allclose(np.asarray(out), of_k(a, b, offs), **near)


bounds = st.integers(-(2**31), 2**31 - 1) | st.integers(-3, 25)


@given(st.lists(bounds, max_size=6))
def test_any_offs_give_each_column_and_each_k_one_group_or_none(offs):
    ends, groups = np.array(offs, np.int32), len(offs)
    a, b = random(M, TOTAL), random(TOTAL, N)
    wanted = of_k(a, b, offs) if offs else np.zeros((0, M, N))
    np.testing.assert_allclose(gg_runtime.grouped_mm(a, b, offs=ends), wanted, **near)
    a, b = random(groups, M, K), random(K, TOTAL)
    wanted = of_columns(a, b, offs) if offs else np.zeros((M, TOTAL))
    np.testing.assert_allclose(gg_runtime.grouped_mm(a, b, offs=ends), wanted, **near)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_neighbours_nan_enters_no_sum(framework):
    """The second group and what lies past the last end hold NaN and infinity: the others are as without them."""
    offs = [5, 12, 17]
    a, b, stack = random(M, TOTAL), random(TOTAL, N), random(3, M, K)
    columns = random(K, TOTAL)
    wanted, wanted_columns = of_k(a, b, offs), of_columns(stack, columns, offs)
    for poison in (a[:, 5:12], a[:, 17:], b[5:12], b[17:], columns[:, 5:12], columns[:, 17:], stack[1]):
        poison[...] = np.nan
        poison[..., ::2] = np.inf
    ends = of(framework, np.array(offs, np.int32))
    out = np.asarray(gg_runtime.grouped_mm(of(framework, a), of(framework, b), offs=ends))
    np.testing.assert_allclose(out[[0, 2]], wanted[[0, 2]], **near)
    out = np.asarray(gg_runtime.grouped_mm(of(framework, stack), of(framework, columns), offs=ends))
    np.testing.assert_allclose(out[:, :5], wanted_columns[:, :5], **near)
    np.testing.assert_allclose(out[:, 12:17], wanted_columns[:, 12:17], **near)
    assert not out[:, 17:].any()


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_views_are_read_and_written_where_they_lie(framework):
    """Steps, transposes and a stack whose matrices are apart; around the output nothing is written."""
    offs = of(framework, np.array([3, 4, 11, 18], np.int32))
    a, b = of(framework, random(40, 10))[::2, ::2].T, of(framework, random(20, 16))[:, 1:15:2]
    base = np.full((8, 6, 20), np.nan, np.float16)
    out = of(framework, base)[::2, 1:, 6:13]
    assert gg_runtime.grouped_mm(a, b, offs=offs, out=out) is out
    np.testing.assert_allclose(np.asarray(out), of_k(np.asarray(a), np.asarray(b), [3, 4, 11, 18]), **near)
    assert np.isnan(base).sum() == base.size - 4 * 5 * 7
    stack, columns = of(framework, random(8, 9, 5)).swapaxes(1, 2)[::2], of(framework, random(20, 9)).T
    base = np.full((20, 12), np.nan, np.float16)
    out = of(framework, base).T[2:7]
    assert gg_runtime.grouped_mm(stack, columns, offs=offs, out=out) is out
    wanted = of_columns(np.asarray(stack), np.asarray(columns), [3, 4, 11, 18])
    np.testing.assert_allclose(np.asarray(out), wanted, **near)
    assert np.isnan(base).sum() == base.size - 5 * 20


def test_what_is_none_counts_as_left_out():
    a, b, offs = random(5, 20), random(20, 7), np.array([3, 4, 11, 20], np.int32)
    none = dict.fromkeys(("alpha", "beta", "k_alignment"))
    left_out = gg_runtime.grouped_mm(a, b, offs=offs)
    np.testing.assert_array_equal(gg_runtime.grouped_mm(a, b, offs=offs, **none), left_out)
    np.testing.assert_array_equal(gg_runtime.Plan(a, b, offs=offs, **none).run(), left_out)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("out_dtype", ["float16", "float32"])
@pytest.mark.parametrize("kind", ["numbers", "scalars of NumPy", "arrays"])
@pytest.mark.parametrize(("alpha", "beta"), [(1, 1), (0.5, 0), (-2, 3), (1, 0)])
def test_products_of_ragged_k_are_added_to_the_output(framework, out_dtype, kind, alpha, beta):
    a, b, offs = random(M, TOTAL), random(TOTAL, N), np.array([5, 5, 12, 18], np.int32)
    before = random(GROUPS, M, N, dtype=out_dtype)
    out = of(framework, before.copy())
    factors = {"alpha": alpha, "beta": beta}
    if kind == "scalars of NumPy":
        factors = {"alpha": np.True_ if alpha == 1 else np.float32(alpha), "beta": np.int64(beta)}
    elif kind == "arrays":
        shapes = {"alpha": (), "beta": (1,)}
        factors = {name: of(framework, np.full(shapes[name], x, np.float32)) for name, x in factors.items()}
    arrays = [of(framework, array) for array in (a, b)]
    assert gg_runtime.grouped_mm(*arrays, offs=of(framework, offs), out=out, **factors) is out
    wanted = alpha * of_k(a, b, offs) + beta * before.astype(np.float64)
    np.testing.assert_allclose(np.asarray(out), wanted, rtol=2e-3, atol=1e-2)
    # Group 1 is empty: it has what beta leaves of it.
    np.testing.assert_array_equal(np.asarray(out)[1], (np.float32(beta) * before[1]).astype(out_dtype))


@pytest.mark.parametrize("beta", [0, 0.0, np.zeros(1, np.float32)], ids=str)
def test_an_output_is_not_read_where_beta_is_0(beta):
    a, b, offs = random(M, TOTAL), random(TOTAL, N), np.array([5, 5, 12, 18], np.int32)
    out = np.full((GROUPS, M, N), np.nan, np.float32)
    gg_runtime.grouped_mm(a, b, offs=offs, out=out, beta=beta)
    np.testing.assert_allclose(out, of_k(a, b, offs), **near)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("index_dtype", ["int32", "int64"])
@pytest.mark.parametrize("which", ["a", "b", "both"])
def test_indices_pick_columns_of_a_and_rows_of_b(framework, index_dtype, which):
    """An index outside picks zeros, which enter a sum as nothing."""
    offs = np.array([4, 4, 10], np.int32)
    picks = {name: np.array([3, 0, 0, 19, -1, 20, 2**31 - 1, 7, -(2**31), 5], index_dtype) for name in "ab"}
    picks["b"] = picks["b"][::-1].copy()
    a, b = random(M, TOTAL), random(TOTAL, N)
    given = {f"{name}_index": of(framework, index) for name, index in picks.items() if which in (name, "both")}
    seen_a, seen_b = a, b
    inside = {name: (index >= 0) & (index < TOTAL) for name, index in picks.items()}
    if which in ("a", "both"):
        seen_a = np.where(inside["a"], a[:, np.where(inside["a"], picks["a"], 0)], 0)
    else:
        a = seen_a = a[:, :10]
    if which in ("b", "both"):
        seen_b = np.where(inside["b"][:, None], b[np.where(inside["b"], picks["b"], 0)], 0)
    else:
        b = seen_b = b[:10]
    out = gg_runtime.grouped_mm(of(framework, a), of(framework, b), offs=of(framework, offs), **given)
    np.testing.assert_allclose(np.asarray(out), of_k(seen_a, seen_b, offs), **near)


def batched(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a.astype(np.float64) @ b.astype(np.float64)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("with_bias", [False, True])
def test_stacks_are_multiplied_matrix_by_matrix(framework, with_bias):
    a, b, bias = random(GROUPS, M, K), random(GROUPS, K, N), random(GROUPS, N)
    given = {"bias": of(framework, bias)} if with_bias else {}
    out = gg_runtime.grouped_mm(of(framework, a), of(framework, b), **given)
    assert tuple(out.shape) == (GROUPS, M, N)
    np.testing.assert_allclose(np.asarray(out), batched(a, b) + with_bias * bias[:, None].astype(np.float64), **near)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("counts", [[0, 0, 0, 0], [5, 5, 5, 5], [1, 0, 5, 3], [-1, 2, 9, 2**31 - 1]], ids=str)
@pytest.mark.parametrize("with_out", [False, True])
def test_rows_past_the_counts_are_left_as_they_are(framework, counts, with_out):
    a, b = random(GROUPS, M, K), random(GROUPS, K, N)
    kept = np.arange(M)[None, :] < np.clip(counts, 0, M)[:, None]
    a[~kept] = np.nan
    out = of(framework, np.full((GROUPS, M, N), 7, np.float16)) if with_out else None
    given = {"counts": of(framework, np.array(counts, np.int32)), "out": out}
    product = np.asarray(gg_runtime.grouped_mm(of(framework, a), of(framework, b), **given))
    np.testing.assert_allclose(product[kept], batched(a, b)[kept], **near)
    assert (product[~kept] == (7 if with_out else 0)).all()


@pytest.mark.parametrize("activation", ["swiglu", "swiglu_oai", "relu2", "gelu"])
@pytest.mark.parametrize("order", ["gate_first", "interleaved"])
def test_stacks_are_activated_as_ragged_rows_are(activation, order):
    """The rows of all matrices as one ragged product, which other tests hold against float64."""
    a, b, bias = random(GROUPS, M, K), random(GROUPS, K, 8), random(GROUPS, 8)
    given = {"bias": bias, "activation": activation, "gate_up": order}
    offs = np.arange(M, M * GROUPS + 1, M, dtype=np.int32)
    wanted = gg_runtime.grouped_mm(a.reshape(-1, K), b, offs=offs, **given)
    out = gg_runtime.grouped_mm(a, b, **given)
    assert out.shape == (GROUPS, M, 4 if activation in GATED else 8)
    np.testing.assert_array_equal(out, wanted.reshape(out.shape))
    out = gg_runtime.grouped_mm(a, b, counts=np.array([2, 0, 5, 1], np.int32), **given)
    np.testing.assert_array_equal(out[0, :2], wanted.reshape(out.shape)[0, :2])


FORMS = {
    "ragged columns": ((3, M, K), (K, TOTAL), True),
    "ragged K": ((M, TOTAL), (TOTAL, N), True),
    "stacks": ((3, M, K), (3, K, N), False),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("with_out", [False, True])
def test_a_plan_multiplies_what_the_same_memory_holds_by_then(form, with_out):
    shape_a, shape_b, ragged = FORMS[form]
    a, b, offs = random(*shape_a), random(*shape_b), np.array([4, 4, 18], np.int32)
    given = {"offs": offs} if ragged else {"counts": np.array([5, 0, 2], np.int32)}
    out = np.full_like(gg_runtime.grouped_mm(a, b, **given), 0) if with_out else None
    plan = gg_runtime.Plan(a, b, out=out, **given)
    assert (plan.out is out or not with_out) and (plan.variant, plan.launches) == ("", 0)
    for _ in range(2):
        a *= 0.5
        assert plan.run() is plan.out
        np.testing.assert_array_equal(plan.out, gg_runtime.grouped_mm(a, b, **given))


def test_a_plan_adds_to_its_output_at_each_run_and_not_before():
    a, b, offs = random(M, TOTAL), random(TOTAL, N), np.array([4, 4, 20], np.int32)
    out = np.ones((3, M, N), np.float32)
    plan = gg_runtime.Plan(a, b, offs=offs, out=out, beta=1.0)
    assert (out == 1).all()
    for runs in (1, 2):
        plan.run()
        np.testing.assert_allclose(out, 1 + runs * of_k(a, b, offs), **near)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("groups", [0, 3])
@pytest.mark.parametrize("zero", ["m", "n", "k", "none"])
def test_sizes_of_zero(framework, groups, zero):
    m, n, k = (0 if zero == name else size for name, size in (("m", M), ("n", N), ("k", K)))
    offs = of(framework, np.full(groups, 9, np.int32))

    def product(shape_a, shape_b, **given):
        return np.asarray(
            gg_runtime.grouped_mm(of(framework, random(*shape_a)), of(framework, random(*shape_b)), **given)
        )

    of_stack = product((groups, m, k), (groups, k, n))
    of_ragged_k = product((m, k), (k, n), offs=offs)
    of_ragged_n = product((groups, m, k), (k, n), offs=offs)
    assert of_stack.shape == of_ragged_k.shape == (groups, m, n) and of_ragged_n.shape == (m, n)
    if zero != "none":
        assert not of_stack.any() and not of_ragged_k.any() and not of_ragged_n.any()


@pytest.mark.skipif(not hasattr(getattr(torch, "nn", None), "functional"), reason="torch is not installed")
@pytest.mark.parametrize("form", FORMS)
def test_the_result_is_that_of_torchs_function_of_the_same_name(form):
    if not hasattr(torch.nn.functional, "grouped_mm"):
        pytest.skip("torch.nn.functional.grouped_mm came with torch 2.10")
    sizes = {
        "ragged columns": ((4, 16, 32), (32, 64)),
        "ragged K": ((16, 64), (64, 24)),
        "stacks": ((4, 16, 32), (4, 32, 8)),
    }
    a, b = (torch.from_numpy(random(*shape)).bfloat16() for shape in sizes[form])
    given = {"offs": torch.tensor([16, 16, 48, 64], dtype=torch.int32)} if FORMS[form][2] else {}
    theirs = torch.nn.functional.grouped_mm(a, b, **given)
    torch.testing.assert_close(gg_runtime.grouped_mm(a, b, **given), theirs)
