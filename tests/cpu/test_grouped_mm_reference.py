"""grouped_mm on the CPU: the same checks, then a loop of the framework's own products."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gg_runtime

try:
    import torch
except ImportError:
    torch = None

FRAMEWORKS = ["numpy"] + ["torch"] * (torch is not None)
fp8 = pytest.mark.skipif(torch is None, reason="NumPy has no float8_e4m3fn of its own, and torch is not installed")


def of(framework: str, values: np.ndarray):
    return values if framework == "numpy" else torch.from_numpy(values)


def operands(rows=20, columns=7, depth=9, groups=4, dtype=np.float16):
    rng = np.random.default_rng(rows + groups)
    shapes = ((rows, depth), (groups, depth, columns), (groups, columns))
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def expected(mat_a, mat_b, offs, bias=None) -> np.ndarray:
    """Row by row, in float32: which group a row belongs to is looked up for each."""
    ends = np.minimum(np.maximum.accumulate(np.maximum(offs, 0)), len(mat_a))
    product = np.zeros((len(mat_a), mat_b.shape[2]), np.float32)
    for row in range(len(mat_a)):
        group = np.searchsorted(ends, row, side="right")
        if group < len(ends):
            product[row] = mat_a[row].astype(np.float32) @ mat_b[group].astype(np.float32)
            product[row] += 0 if bias is None else bias[group].astype(np.float32)
    return product


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(
    "offs",
    [[5, 10, 15, 20], [0, 0, 20, 20], [3, 3, 9, 9], [0, 0, 0, 0], [20, 20, 20, 20], [1, 2, 3, 4],
     [-5, 4, 2, 50], [2**31 - 1, -(2**31), 7, 0], [9, 3, 12, 11]],
    ids=str,
)  # fmt: skip
def test_rows_are_multiplied_with_the_matrix_of_their_group_whatever_offs_hold(framework, offs, with_bias):
    a, b, bias = operands()
    offs = np.array(offs, np.int32)
    output = gg_runtime.grouped_mm(
        of(framework, a), of(framework, b), offs=of(framework, offs), bias=of(framework, bias) if with_bias else None
    )
    wanted = expected(a, b, offs, bias if with_bias else None)
    assert type(output) is type(of(framework, a)) and np.asarray(output).dtype == np.float16
    np.testing.assert_allclose(np.asarray(output), wanted, rtol=2e-3, atol=2e-3)
    tail = max([0, *np.minimum(np.maximum.accumulate(offs), 20)])
    assert not np.asarray(output)[tail:].any()


@given(st.lists(st.integers(-(2**31), 2**31 - 1) | st.integers(-3, 25), min_size=4, max_size=4))
def test_any_offs_give_each_row_one_group_or_none(offs):
    a, b, _ = operands()
    offs = np.array(offs, np.int32)
    np.testing.assert_allclose(gg_runtime.grouped_mm(a, b, offs=offs), expected(a, b, offs), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_views_are_read_and_written_where_they_lie(framework):
    a, b, bias = operands(40, 14, 18, 8)
    a, b, bias = (of(framework, array) for array in (a, b, bias))
    base = of(framework, np.full((14, 40), np.nan, np.float16))
    offs = of(framework, np.array([3, 4, 11, 20], np.int32))
    out = base.T[::2, 3:10]
    given = (a[::2, 1::2], b[::2, ::2, 7:], bias[::2, :7])
    assert gg_runtime.grouped_mm(*given[:2], offs=offs, bias=given[2], out=out) is out
    wanted = expected(*(np.asarray(array) for array in (*given[:2], offs, given[2])))
    np.testing.assert_allclose(np.asarray(out), wanted, rtol=2e-3, atol=2e-3)
    assert np.isnan(np.asarray(base)).sum() == 14 * 40 - 7 * 20


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("sizes", [(0, 7, 9, 4), (20, 0, 9, 4), (20, 7, 9, 0), (20, 7, 0, 0), (0, 0, 0, 0)])
def test_sizes_of_zero(framework, sizes):
    a, b, _ = (of(framework, array) for array in operands(*sizes))
    offs = of(framework, np.full(sizes[3], 20, np.int32))
    output = gg_runtime.grouped_mm(a, b, offs=offs)
    assert tuple(output.shape) == sizes[:2] and not np.asarray(output).any()


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_products_of_depth_0_are_the_bias(framework):
    a, b, bias = (of(framework, array) for array in operands(depth=0))
    offs = of(framework, np.array([5, 5, 12, 15], np.int32))
    output = np.asarray(gg_runtime.grouped_mm(a, b, offs=offs, bias=bias))
    groups = np.searchsorted([5, 5, 12, 15], np.arange(15), side="right")
    np.testing.assert_array_equal(output[:15], np.asarray(bias)[groups])
    assert not output[15:].any()


def fp8_operands():
    a, b, bias = (torch.from_numpy(array).float() for array in operands())
    return a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn), bias.bfloat16()


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("with_out", [False, True])
def test_a_plan_multiplies_what_the_same_memory_holds_by_then(framework, with_out):
    a, b, bias = operands()
    offs = np.array([5, 10, 15, 20], np.int32)
    out = of(framework, np.full((20, 7), np.nan, np.float16)) if with_out else None
    arrays = [of(framework, array) for array in (a, b)]
    plan = gg_runtime.Plan(*arrays, offs=of(framework, offs), bias=of(framework, bias), out=out)
    assert (plan.out is out or not with_out) and (plan.variant, plan.launches) == ("", 0)
    for ends in ([5, 10, 15, 20], [0, 0, 20, 20], [1, 2, 3, 4]):
        offs[:] = ends  # torch.from_numpy shares the memory
        a *= 0.5
        assert plan.run() is plan.out
        np.testing.assert_allclose(np.asarray(plan.out), expected(a, b, offs, bias), rtol=2e-3, atol=2e-3)


def test_a_plan_of_lists_has_no_bias_and_no_batch():
    a, b, bias = operands()
    with pytest.raises(ValueError, match="Plan: bias goes with arrays"):
        gg_runtime.Plan([a], [b[0]], bias=bias)
    with pytest.raises(ValueError, match="Plan: batch_invariant goes with arrays"):
        gg_runtime.Plan([a], [b[0]], batch_invariant=True)
    with pytest.raises(ValueError, match="needs matrices on a CUDA device"):
        gg_runtime.Plan(a, b, offs=np.zeros(4, np.int32), variant="basic_ragged_sm80")


@fp8
@pytest.mark.parametrize("scale_b", [1, 4], ids=["one scale", "a scale a group"])
def test_fp8_products_are_scaled_before_the_bias_is_added_and_rounded_once(scale_b):
    a, b, bias = fp8_operands()
    offs = torch.tensor([3, 3, 12, 18], dtype=torch.int32)
    scale_a, scale_b = torch.tensor(0.5), torch.rand(scale_b) + 0.5
    output = gg_runtime.grouped_mm(a, b, offs=offs, bias=bias, scale_a=scale_a, scale_b=scale_b)
    exact = torch.zeros(20, 7)
    for group, (start, end) in enumerate([(0, 3), (3, 3), (3, 12), (12, 18)]):
        factor = scale_a * scale_b[group % len(scale_b)]
        exact[start:end] = a[start:end].float() @ b[group].float() * factor + bias[group].float()
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output, exact.bfloat16(), rtol=0, atol=0)


@fp8
@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float8_e4m3fn"])
def test_fp8_products_come_in_the_dtype_asked_for(name):
    a, b, _ = fp8_operands()
    offs = torch.tensor([5, 10, 15, 20], dtype=torch.int32)
    wanted = getattr(torch, name)
    output = gg_runtime.grouped_mm(a, b, offs=offs, out_dtype=wanted)
    assert output.dtype == wanted
    given = torch.empty(20, 7, dtype=wanted)
    assert gg_runtime.grouped_mm(a, b, offs=offs, out=given) is given
    torch.testing.assert_close(given.float(), output.float(), rtol=0, atol=0)
    (listed,) = gg_runtime.group_gemm([a[:5]], [b[0]], out_dtype=name)
    torch.testing.assert_close(listed.float(), output[:5].float(), rtol=0, atol=0)


@fp8
def test_fp8_outputs_that_are_too_large_become_the_largest_value():
    a = torch.tensor([[4.0], [-4.0]]).expand(2, 64).to(torch.float8_e4m3fn)
    b = torch.full((1, 64, 3), 8.0).to(torch.float8_e4m3fn)
    output = gg_runtime.grouped_mm(a, b, offs=torch.tensor([2], dtype=torch.int32), out_dtype="float8_e4m3fn")
    assert output.float().tolist() == [[448.0] * 3, [-448.0] * 3]


@fp8
def test_fp8_lists_take_a_scale_for_each_product():
    a, b, _ = fp8_operands()
    A, B = [a[:4], a[4:5], a[5:]], [b[0], b[1], b[2]]
    scale_b = torch.tensor([1.0, 0.25, 3.0])
    plan = gg_runtime.Plan(A, B, scale_a=torch.tensor([2.0]), scale_b=scale_b, out_dtype="float32")
    for i, output in enumerate(plan.run()):
        torch.testing.assert_close(output, A[i].float() @ B[i].float() * (2 * scale_b[i]), rtol=0, atol=0)


@pytest.mark.skipif(torch is None, reason="torch is not installed")
def test_torch_and_numpy_in_one_call_are_told():
    a, b, _ = operands()
    offs = np.array([5, 10, 15, 20], np.int32)
    with pytest.raises(TypeError, match="grouped_mm: torch tensors and other arrays are in one call"):
        gg_runtime.grouped_mm(torch.from_numpy(a), torch.from_numpy(b), offs=offs)


@pytest.mark.skipif(torch is None, reason="torch is not installed")
def test_an_output_that_requires_grad_is_refused():
    a, b, _ = (torch.from_numpy(array) for array in operands())
    offs = torch.tensor([5, 10, 15, 20], dtype=torch.int32)
    out = torch.empty(20, 7, dtype=torch.float16, requires_grad=True)
    with pytest.raises(ValueError, match="out requires grad"):
        gg_runtime.grouped_mm(a, b, offs=offs, out=out)


@pytest.mark.skipif(not hasattr(getattr(torch, "nn", None), "functional"), reason="torch is not installed")
def test_the_result_is_that_of_torchs_function_of_the_same_name():
    if not hasattr(torch.nn.functional, "grouped_mm"):
        pytest.skip("torch.nn.functional.grouped_mm came with torch 2.10")
    a, b, _ = (torch.from_numpy(array).bfloat16() for array in operands(32, 16, 16, 4))
    offs = torch.tensor([8, 8, 24, 32], dtype=torch.int32)
    theirs = torch.nn.functional.grouped_mm(a, b, offs=offs)
    torch.testing.assert_close(gg_runtime.grouped_mm(a, b, offs=offs), theirs)
