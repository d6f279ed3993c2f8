"""JAX arrays on the CPU, in a process of their own: JAX starts threads."""

from importlib.util import find_spec

import pytest

from processes import run_python

pytestmark = pytest.mark.skipif(not find_spec("jax"), reason="JAX is not installed")

ARRAYS = """
import jax, ml_dtypes, numpy
import gg_runtime

numbers = numpy.random.default_rng(0)

def normal(*shape, dtype=ml_dtypes.bfloat16):
    return numbers.standard_normal(shape, numpy.float32).astype(dtype)

x, w, up, down = normal(13, 256), normal(4, 256, 48), normal(4, 256, 64), normal(4, 32, 256)
offs = numpy.array([3, 3, 9, 13], numpy.int32)
ids, weights = numbers.integers(0, 4, (13, 2), numpy.int32), normal(13, 2, dtype=numpy.float32)
"""

EACH_CALL = (
    ARRAYS
    + """
codes, scales = gg_runtime.quantize_1x128(x)
fp8_weights, of_blocks = w.astype(codes.dtype), numpy.abs(normal(4, 1, 2, dtype=numpy.float32))
inverse = gg_runtime.route(ids, 4).inverse
CALLS = {
    "a list": (lambda a, b: gg_runtime.group_gemm([a, a], [b[0], b[1]]), x, w),
    "ragged rows": (lambda a, b, ends: gg_runtime.grouped_mm(a, b, offs=ends), x, w, offs),
    "ragged K": (lambda a, b, ends: gg_runtime.grouped_mm(a.T, b, offs=ends, out_dtype="float32"), x, x, offs),
    "a stack": (lambda a, b: gg_runtime.grouped_mm(a, b), normal(4, 5, 256), w),
    "fp8": (
        lambda a, b, ends, of_a, of_b: gg_runtime.grouped_mm(a, b, offs=ends, scale_a=of_a, scale_b=of_b),
        codes, fp8_weights, offs, scales, of_blocks,
    ),
    "a layer": (gg_runtime.fused_experts, x, up, down, weights, ids),
    "route": (lambda chosen: gg_runtime.route(chosen, 4), ids),
    "combine": (gg_runtime.combine, normal(26, 8), inverse, weights),
    "quantize_1x128": (gg_runtime.quantize_1x128, x),
}
for name, (call, *arrays) in CALLS.items():
    expected, got = jax.tree.leaves(call(*arrays)), jax.tree.leaves(call(*map(jax.numpy.asarray, arrays)))
    assert len(expected) == len(got) > 0, name
    for right, one in zip(expected, got):
        assert isinstance(one, jax.Array) and (one.dtype, one.shape) == (right.dtype, right.shape), name
        one, right = numpy.asarray(one, numpy.float32), right.astype(numpy.float32)
        assert numpy.allclose(one, right, rtol=2**-7, atol=2**-7), name  # sums in another order, rounded to bfloat16
"""
)

REFUSALS = (
    ARRAYS
    + """
def refusal(call, *arrays):
    try:
        call(*map(jax.numpy.asarray, arrays))
    except (TypeError, ValueError) as error:
        return str(error)
    raise AssertionError("no error")

def product(a):
    return gg_runtime.grouped_mm(a, w, offs=offs)

traced = "inside of jax.jit, jax.grad and jax.vmap arrays have no memory: call it outside of them"
assert traced in refusal(jax.jit(product), x)
assert traced in refusal(jax.grad(lambda a: product(a).sum()), x)
assert traced in refusal(jax.vmap(product), x[None])
unchanging = refusal(lambda a, out: gg_runtime.combine(a, offs[:, None], out=out), x, x[:4])
assert "out is of a framework whose arrays never change; leave it out" in unchanging
"""
)


@pytest.mark.parametrize("script", [EACH_CALL, REFUSALS], ids=["each call", "refusals"])
def test_jax(script, tmp_path):
    run_python(script, tmp_path, JAX_PLATFORMS="cpu")
