"""CPU matrices: the same checks, then the framework's own product, accumulated in float32 and rounded once."""

import numpy as np
import pytest

import gg_runtime

try:
    import torch
except ImportError:
    torch = None

FRAMEWORKS = ["numpy"] + ["torch"] * (torch is not None)
SIZES = [(5, 7, 3), (33, 16, 129), (1, 1, 1), (64, 2, 8)]


def random(framework: str, rows: int, columns: int, seed: int):
    values = np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float16)
    return values if framework == "numpy" else torch.from_numpy(values)


def exact(a, b) -> np.ndarray:
    return (np.asarray(a).astype(np.float32) @ np.asarray(b).astype(np.float32)).astype(np.float16)


def inputs(framework: str):
    A = [random(framework, m, k, seed) for seed, (m, n, k) in enumerate(SIZES)]
    return A, [random(framework, k, n, seed + 100) for seed, (m, n, k) in enumerate(SIZES)]


def run_a_plan(A, B):
    return gg_runtime.Plan(A, B).run()


def poisoned(framework: str, rows: int, columns: int):
    array = np.full((rows, columns), np.nan, np.float16)
    return array if framework == "numpy" else torch.from_numpy(array)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("function", [gg_runtime.group_gemm, gg_runtime.group_gemm_fn, run_a_plan])
def test_products_are_right_and_of_the_callers_kind(framework, function):
    A, B = inputs(framework)
    outputs = function(A, B)
    assert isinstance(outputs, list)
    for a, b, c in zip(A, B, outputs):
        assert type(c) is type(a) and c.dtype == a.dtype
        np.testing.assert_array_equal(np.asarray(c), exact(a, b))


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("kind", [list, tuple])
def test_given_outputs_are_written_and_handed_back(framework, kind):
    A, B = inputs(framework)
    out = kind(poisoned(framework, m, n) for m, n, _ in SIZES)
    outputs = gg_runtime.group_gemm(kind(A), kind(B), out=out)
    for a, b, c, given in zip(A, B, outputs, out):
        assert c is given
        np.testing.assert_array_equal(np.asarray(c), exact(a, b))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_views_are_read_and_written_where_they_lie(framework):
    base_a, base_b, base_c = random(framework, 40, 60, 1), random(framework, 60, 40, 2), poisoned(framework, 80, 80)
    a, b, c = base_a[3:30:2, 1:20], base_b.T[5:24, ::3], base_c[1:80:5, 7:27].T[:14, :16].T
    (output,) = gg_runtime.group_gemm([a[:, :19]], [b[:, :14]], out=[c[:14, :14]])
    np.testing.assert_array_equal(np.asarray(output), exact(a[:, :19], b[:, :14]))
    untouched = np.isnan(np.asarray(base_c)).sum()
    assert untouched == 80 * 80 - 14 * 14


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_sizes_of_zero(framework):
    A = [random(framework, *shape, 0) for shape in [(0, 4), (4, 3), (5, 0)]]
    B = [random(framework, *shape, 0) for shape in [(4, 3), (3, 0), (0, 2)]]
    out = [poisoned(framework, *shape) for shape in [(0, 3), (4, 0), (5, 2)]]
    for outputs in (gg_runtime.group_gemm(A, B), gg_runtime.group_gemm(A, B, out=out)):
        assert [tuple(c.shape) for c in outputs] == [(0, 3), (4, 0), (5, 2)]
        assert not np.asarray(outputs[2]).any(), "a product of depth 0 is zero"


def test_an_empty_list_gives_an_empty_list():
    assert gg_runtime.group_gemm([], []) == []
    assert gg_runtime.group_gemm((), (), out=()) == []
    assert gg_runtime.Plan([], []).run() == []


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_plan_multiplies_what_the_memory_holds_when_it_runs(framework):
    A, B = inputs(framework)
    plan = gg_runtime.Plan(A, B)
    A[0][...] = 2
    B[1][...] = 0
    outputs = plan.run()
    assert all(c is mine for c, mine in zip(outputs, plan.out))
    for a, b, c in zip(A, B, outputs):
        np.testing.assert_array_equal(np.asarray(c), exact(a, b))
    assert (plan.variant, plan.grid, plan.by_value) == ("", 0, False)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_infinities_and_nans_come_through(framework):
    A, B = [random(framework, 4, 4, 1)], [random(framework, 4, 4, 2)]
    A[0][1, 1], B[0][2, 2] = float("inf"), float("nan")
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(np.asarray(gg_runtime.group_gemm(A, B)[0]), exact(A[0], B[0]))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_wrong_arguments_are_refused_as_on_a_gpu(framework):
    a, b = random(framework, 8, 8, 1), random(framework, 8, 8, 2)
    with pytest.raises(ValueError, match=r"B\[1\] has K=5 rows but A\[1\] has K=8 columns"):
        gg_runtime.group_gemm([a, a], [b, b[:5]])
    with pytest.raises(ValueError, match=r"out\[0\] shares memory with A\[0\]"):
        gg_runtime.group_gemm([a], [b], out=[a])
    with pytest.raises(ValueError, match=r"out\[0\] has shape \[8, 7\], A\[i\] @ B\[i\] has \[8, 8\]"):
        gg_runtime.group_gemm([a], [b], out=[poisoned(framework, 8, 7)])
    wide = a.astype(np.float32) if framework == "numpy" else a.float()
    with pytest.raises(TypeError, match=r"A\[0\] has dtype float32; float16, bfloat16 or float8_e4m3fn is needed"):
        gg_runtime.group_gemm([wide], [b])


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_nothing_is_written_when_an_argument_is_refused(framework):
    a, b, c = random(framework, 8, 8, 1), random(framework, 8, 8, 2), poisoned(framework, 8, 8)
    with pytest.raises(ValueError):
        gg_runtime.group_gemm([a, a], [b, b], out=[c, c[:4]])
    assert np.isnan(np.asarray(c)).all()


needs_torch = pytest.mark.skipif(torch is None, reason="torch is not installed")


@needs_torch
def test_bfloat16_rounds_once():
    A, B = ([torch.randn(*shape).bfloat16() for shape in shapes] for shapes in ([(9, 65), (3, 4)], [(65, 5), (4, 3)]))
    for a, b, c in zip(A, B, gg_runtime.group_gemm(A, B)):
        assert c.dtype == torch.bfloat16
        assert torch.equal(c, (a.float() @ b.float()).bfloat16())


@needs_torch
def test_parameters_give_plain_tensors_without_a_gradient():
    A, B = [torch.nn.Parameter(torch.randn(4, 4).half())], [torch.randn(4, 4).half()]
    with torch.no_grad():
        (c,) = gg_runtime.group_gemm(A, B)
    assert type(c) is torch.Tensor and not c.requires_grad
    np.testing.assert_array_equal(c.numpy(), exact(A[0].detach(), B[0]))


@needs_torch
def test_an_output_that_requires_grad_is_refused_unless_gradients_are_off():
    A, B, out = [torch.zeros(4, 4).half()], [torch.zeros(4, 4).half()], [torch.ones(4, 4).half().requires_grad_()]
    with pytest.raises(ValueError, match=r"out\[0\] requires grad.*detach"):
        gg_runtime.group_gemm(A, B, out=out)
    with torch.no_grad():
        gg_runtime.group_gemm(A, B, out=out)
    assert not out[0].any()


@needs_torch
@pytest.mark.parametrize("kind", ["meta", "sparse"])
def test_tensors_without_memory_of_their_own_are_refused(kind):
    a = torch.ones(4, 4).half()
    a = a.to("meta") if kind == "meta" else a.to_sparse()
    with pytest.raises((TypeError, ValueError), match=r"A\[0\]"):
        gg_runtime.group_gemm([a], [torch.zeros(4, 4).half()])


@needs_torch
def test_torch_and_numpy_in_one_list_are_refused_before_anything_is_written():
    a, b, c = random("torch", 4, 4, 1), random("numpy", 4, 4, 2), poisoned("torch", 4, 4)
    for A, B, out in (([a], [b], [c]), ([b], [a], [c]), ([a], [a], [poisoned("numpy", 4, 4)])):
        with pytest.raises(TypeError, match="torch.from_numpy"):
            gg_runtime.group_gemm(A, B, out=out)
    assert np.isnan(c.numpy()).all()


def test_an_output_that_is_read_only_is_refused_before_anything_is_written():
    A, B = inputs("numpy")
    out = [poisoned("numpy", a.shape[0], b.shape[1]) for a, b in zip(A, B)]
    out[-1].flags.writeable = False
    with pytest.raises(ValueError, match="is read-only"):
        gg_runtime.group_gemm(A, B, out=out)
    assert np.isnan(out[0]).all()


def test_arrays_that_no_framework_multiplies_are_refused():
    class Exported:
        def __init__(self, array):
            self.__dlpack__, self.__dlpack_device__ = array.__dlpack__, array.__dlpack_device__

    A, B = inputs("numpy")
    with pytest.raises(TypeError, match="a Exported has no astype"):
        gg_runtime.group_gemm([Exported(a) for a in A], B)


@pytest.mark.parametrize("kind", [np.matrix, np.ma.masked_array])
def test_arrays_whose_operators_mean_something_else_are_refused(kind):
    """`*` of two matrices is a product, and masked elements would be left out of sums."""
    A, B = inputs("numpy")
    with pytest.raises(TypeError, match="mean something else than those of arrays; pass numpy.asarray of it"):
        gg_runtime.group_gemm([kind(A[0]), *A[1:]], B)
    mapped = [a.view(np.memmap) for a in A]  # arrays as any other
    for c, wanted in zip(gg_runtime.group_gemm(mapped, B), gg_runtime.group_gemm(A, B)):
        assert np.array_equal(c, wanted)


@needs_torch
def test_the_default_device_of_torch_does_not_matter():
    a, b = random("torch", 4, 6, 1), random("torch", 6, 5, 2)[None]
    with torch.device("meta"):
        c = gg_runtime.grouped_mm(a, b, offs=torch.tensor([3], dtype=torch.int32, device="cpu"))
    assert not c[3:].any() and c[:3].any()


@needs_torch
def test_a_subclass_of_a_tensor_is_a_tensor():
    class Weight(torch.Tensor):
        pass

    a, b = random("torch", 4, 6, 1), random("torch", 6, 5, 2)
    (c,) = gg_runtime.group_gemm([a.as_subclass(Weight)], [b])
    np.testing.assert_array_equal(np.asarray(c), exact(a, b))
