"""Arrays of other frameworks, and torch's own subclasses."""

import pytest

torch = pytest.importorskip("torch")

import gg_runtime  # noqa: E402
from gpu_busy import CYCLES  # noqa: E402
from oracle import assert_exact, fill_sparse_integers  # noqa: E402

SHAPES = [(64, 128, 96), (33, 47, 61), (1, 1, 8)]

JAX = """
import jax, numpy
import gg_runtime
numbers = numpy.random.default_rng(0)
for dtype in (jax.numpy.float16, jax.numpy.bfloat16):
    for shapes in ([(64, 128, 96), (33, 47, 61)], [(17, 24, 40)] * 64):
        a = [numbers.integers(-2, 3, (m, k)).astype(numpy.float32) for m, n, k in shapes]
        b = [numbers.integers(-2, 3, (k, n)).astype(numpy.float32) for m, n, k in shapes]
        A = [jax.device_put(x).astype(dtype) * 1 for x in a]
        B = [jax.device_put(x).astype(dtype) * 1 for x in b]
        C = gg_runtime.group_gemm(A, B)
        for x, y, c in zip(a, b, C):
            assert isinstance(c, jax.Array) and c.dtype == dtype and c.shape == (x.shape[0], y.shape[1])
            assert numpy.array_equal(numpy.asarray(c.astype(numpy.float32)), x @ y)
"""


def test_cupy(cupy):
    numbers = cupy.random.default_rng(0)
    A = [numbers.integers(-2, 3, (m, k)).astype(cupy.float16) for m, n, k in SHAPES]
    B = [numbers.integers(-2, 3, (k, n)).astype(cupy.float16) for m, n, k in SHAPES]
    A[0], B[1] = cupy.asfortranarray(A[0]), cupy.asfortranarray(B[1])
    out = [cupy.full((m, n), cupy.nan, dtype=cupy.float16) for m, n, k in SHAPES]
    for C in (gg_runtime.group_gemm(A, B), gg_runtime.group_gemm(A, B, out=out), gg_runtime.group_gemm(A * 20, B * 20)):
        for i, c in enumerate(C):
            expected = A[i % 3].astype(cupy.float32) @ B[i % 3].astype(cupy.float32)
            assert isinstance(c, cupy.ndarray) and c.dtype == cupy.float16
            assert bool((c == expected).all())


def test_cupy_current_stream(cupy):
    A, B = torch.full((64, 64), 2.0, device="cuda").half(), torch.eye(64, device="cuda").half()
    source = A.clone()
    A.fill_(float("nan"))
    torch.cuda.synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream, torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr)):
        torch.cuda._sleep(CYCLES // 6)
        A.copy_(source)
        (C,) = gg_runtime.group_gemm([cupy.asarray(A)], [cupy.asarray(B)])
    stream.synchronize()
    assert bool((C == 2).all())


def test_jax(run_with_jax):
    run_with_jax(JAX)


def test_parameters_give_plain_tensors():
    A = [torch.nn.Parameter(torch.empty(m, k, device="cuda", dtype=torch.float16)) for m, n, k in SHAPES]
    B = [torch.nn.Parameter(torch.empty(k, n, device="cuda", dtype=torch.float16)) for m, n, k in SHAPES]
    with torch.no_grad():
        fill_sparse_integers([*A, *B])
        C = gg_runtime.group_gemm(A, B)
    assert all(type(c) is torch.Tensor and not c.requires_grad for c in C)
    assert_exact(C, [a.detach() for a in A], [b.detach() for b in B])


def test_inference_mode():
    with torch.inference_mode():
        A, B = torch.ones(64, 64, device="cuda").half(), torch.ones(64, 64, device="cuda").half()
        (C,) = gg_runtime.group_gemm([A], [B])
        assert bool((C == 64).all())


def test_new_outputs_are_row_major_and_start_on_16_bytes():
    A = [torch.ones(m, k, device="cuda", dtype=torch.float16) for m, n, k in SHAPES]
    B = [torch.ones(k, n, device="cuda", dtype=torch.float16) for m, n, k in SHAPES]
    for c in gg_runtime.group_gemm(A, B):
        assert c.stride() == (c.shape[1], 1) and c.data_ptr() % 16 == 0
