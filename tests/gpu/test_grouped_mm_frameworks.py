"""grouped_mm on arrays of other frameworks."""

import pytest

torch = pytest.importorskip("torch")

import gg_runtime  # noqa: E402
from gpu_busy import CYCLES  # noqa: E402

JAX = """
import jax, numpy
import gg_runtime
numbers = numpy.random.default_rng(0)
ends = [20, 20, 61]
for dtype in (jax.numpy.float16, jax.numpy.bfloat16):
    for n, k in ((128, 96), (47, 61)):
        a = numbers.integers(-2, 3, (70, k)).astype(numpy.float32)
        b = numbers.integers(-2, 3, (3, k, n)).astype(numpy.float32)
        expected = numpy.concatenate([a[:20] @ b[0], a[20:61] @ b[2], numpy.zeros((9, n))])
        A, B = (jax.device_put(x).astype(dtype) * 1 for x in (a, b))
        offs = jax.device_put(numpy.array(ends, numpy.int32)) * 1
        for options in ({}, {"out_dtype": dtype}, {"batch_invariant": True}):
            C = gg_runtime.grouped_mm(A, B, offs=offs, **options)
            assert isinstance(C, jax.Array) and C.dtype == dtype and C.shape == (70, n)
            assert numpy.array_equal(numpy.asarray(C.astype(numpy.float32)), expected)
"""


@pytest.mark.parametrize("n, k", [(128, 96), (47, 61)])
def test_cupy(cupy, n, k):
    numbers = cupy.random.default_rng(0)
    A = numbers.integers(-2, 3, (70, k)).astype(cupy.float16)
    B = numbers.integers(-2, 3, (3, k, n)).astype(cupy.float16)
    offs = cupy.array([20, 20, 61], dtype=cupy.int32)
    wide = A.astype(cupy.float32), B.astype(cupy.float32)
    expected = cupy.concatenate([wide[0][:20] @ wide[1][0], wide[0][20:61] @ wide[1][2], cupy.zeros((9, n), "f4")])
    out = cupy.full((70, n), cupy.nan, dtype=cupy.float16)
    column_major = cupy.ascontiguousarray(B.transpose(0, 2, 1)).transpose(0, 2, 1)
    for C in (
        gg_runtime.grouped_mm(A, B, offs=offs),
        gg_runtime.grouped_mm(cupy.asfortranarray(A), column_major, offs=offs),
        gg_runtime.grouped_mm(A, B, offs=offs, out=out, out_dtype=cupy.float16),
    ):
        assert isinstance(C, cupy.ndarray) and C.dtype == cupy.float16
        assert bool((expected == C).all())


def test_cupy_current_stream(cupy):
    A, B = torch.full((64, 64), 2.0, device="cuda").half(), torch.eye(64, device="cuda").half().expand(2, 64, 64)
    B, offs, source = B.contiguous(), torch.tensor([9, 64], dtype=torch.int32, device="cuda"), A.clone()
    A.fill_(float("nan"))
    torch.cuda.synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream, torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr)):
        torch.cuda._sleep(CYCLES // 6)
        A.copy_(source)
        C = gg_runtime.grouped_mm(*(cupy.asarray(x) for x in (A, B)), offs=cupy.asarray(offs))
    stream.synchronize()
    assert bool((C == 2).all())


def test_jax(run_with_jax):
    run_with_jax(JAX)
