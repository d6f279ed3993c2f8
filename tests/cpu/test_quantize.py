"""quantize_1x128: what it refuses, and the CPU's results."""

import pytest

import gg_runtime

torch = pytest.importorskip("torch")


def dequantized(q, scales):
    return q.float() * scales.repeat_interleave(128, 1)[:, : q.shape[1]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(5, 300), (1, 128), (3, 1), (7, 1024)])
def test_a_block_s_largest_is_448_scales_and_each_element_is_rounded_once(shape, dtype):
    x = torch.randn(shape, dtype=dtype)
    q, scales = gg_runtime.quantize_1x128(x)
    assert (q.dtype, q.shape) == (torch.float8_e4m3fn, shape)
    assert (scales.dtype, tuple(scales.shape)) == (torch.float32, (shape[0], -(-shape[1] // 128)))
    for block in range(scales.shape[1]):
        columns = slice(128 * block, 128 * (block + 1))
        largest = x[:, columns].float().abs().amax(1)
        assert torch.equal(scales[:, block], largest / 448)
        assert bool((q[:, columns].float().abs().amax(1) == 448).all())
    # Half a unit in the last place of 3 bits, or of the smallest normal number, 2**-6.
    allowed = (x.float().abs() * 2**-4).clamp_min(scales.repeat_interleave(128, 1)[:, : shape[1]] * 2**-10) * 1.001
    assert bool(((dequantized(q, scales) - x.float()).abs() <= allowed).all())


def test_views_are_read_where_they_lie():
    base = torch.randn(700, 9).bfloat16()
    x = base.t()[1::2, ::2]
    for one, other in zip(gg_runtime.quantize_1x128(x), gg_runtime.quantize_1x128(x.contiguous())):
        assert one.is_contiguous() and torch.equal(one.float(), other.float())


def test_blocks_of_zeros_and_of_what_is_too_small_have_the_scale_1():
    x = torch.zeros(2, 256, dtype=torch.bfloat16)
    x[1, :128] = 2.0**-110
    q, scales = gg_runtime.quantize_1x128(x)
    assert not q.float().any() and bool((scales == 1).all())


def test_nan_stays_where_it_is_and_an_infinity_takes_its_block():
    x = torch.ones(3, 256, dtype=torch.bfloat16)
    x[0, 5], x[1, 7], x[2, 128:] = float("nan"), float("inf"), float("nan")
    q, scales = gg_runtime.quantize_1x128(x)
    assert q[0].isnan().nonzero().tolist() == [[5]] and bool(scales[0].isfinite().all())
    assert q[1].isnan().nonzero().tolist() == [[7]] and scales[1, 0] == float("inf") and scales[1, 1] == 1 / 448
    assert bool(q[2, 128:].isnan().all()) and scales[2].tolist() == [1 / torch.tensor(448.0), 1]


@pytest.mark.parametrize("shape", [(0, 128), (4, 0), (0, 0)])
def test_sizes_of_zero(shape):
    q, scales = gg_runtime.quantize_1x128(torch.zeros(shape, dtype=torch.float16))
    assert tuple(q.shape) == shape and tuple(scales.shape) == (shape[0], -(-shape[1] // 128))


def test_what_it_refuses():
    with pytest.raises(TypeError, match=r"quantize_1x128: x has dtype float32; float16 or bfloat16 is needed"):
        gg_runtime.quantize_1x128(torch.zeros(2, 2))
    with pytest.raises(ValueError, match=r"quantize_1x128: x has 3 dimensions"):
        gg_runtime.quantize_1x128(torch.zeros(2, 2, 2).half())
    with pytest.raises(RuntimeError, match=r"quantize_1x128: x requires grad"):
        gg_runtime.quantize_1x128(torch.zeros(2, 2, requires_grad=True).half())
    with pytest.raises(TypeError, match=r"quantize_1x128: .*list"):
        gg_runtime.quantize_1x128([1])


def test_what_torch_traces_has_shapes_alone():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        q, scales = gg_runtime.quantize_1x128(torch.zeros(6, 300, dtype=torch.bfloat16).T)
    assert (q.dtype, q.shape, q.stride()) == (torch.float8_e4m3fn, (300, 6), (6, 1))
    assert (scales.dtype, scales.shape) == (torch.float32, (300, 1))


def test_a_block_of_the_smallest_magnitude_that_is_kept():
    x = torch.zeros(1, 128).bfloat16()
    x[0, 3] = 2.0**-100
    q, scales = gg_runtime.quantize_1x128(x)
    assert q[0, 3] == 448 and scales.item() == torch.tensor(2.0**-100).div(448).item()
