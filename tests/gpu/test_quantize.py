"""quantize_1x128 on a GPU: the bits of the CPU's, and what grouped_mm makes of it."""

import pytest

torch = pytest.importorskip("torch")

import gg_runtime  # noqa: E402
from cases import device_sm  # noqa: E402
from ragged_cases import as_offs  # noqa: E402

pytestmark = pytest.mark.skipif(device_sm() != 90, reason=f"e4m3 kernels are for sm_90, this GPU is sm_{device_sm()}")


SEVERAL_TURNS = (40007, 528)  # more blocks than the GPU holds programs at once


def assert_as_on_the_cpu(x):
    for ours, theirs in zip(gg_runtime.quantize_1x128(x), gg_runtime.quantize_1x128(x.cpu())):
        ours, theirs = ours.float().cpu(), theirs.float()
        assert torch.equal(ours.nan_to_num(nan=1e9), theirs.nan_to_num(nan=1e9))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "shape", [(1, 1), (37, 128), (33, 400), (1000, 2048), (5, 7168), (40, 131), SEVERAL_TURNS], ids=str
)
def test_the_bits_are_those_of_the_cpu(shape, dtype):
    torch.manual_seed(sum(shape))
    x = (
        torch.randn(shape, device="cuda", dtype=dtype)
        * torch.logspace(-6, 3, shape[0], device="cuda").to(dtype)[:, None]
    )
    x[0] = 0
    assert_as_on_the_cpu(x)
    wide = torch.randn(shape[0], 2 * shape[1] + 3, device="cuda", dtype=dtype)
    for view in (wide[:, 1 : 1 + shape[1]], wide[:, : 2 * shape[1] : 2], x.t().contiguous().t()):
        assert_as_on_the_cpu(view)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_all_that_the_largest_of_a_block_can_be(dtype):
    bits = torch.arange(2**15, device="cuda", dtype=torch.int16)  # infinity and NaN as well
    x = torch.zeros(2**15, 128, device="cuda", dtype=dtype)
    x[:, 77] = bits.view(dtype)
    x[:, 78] = x[:, 77] / 3
    assert_as_on_the_cpu(x)


def test_nan_infinities_and_small_blocks():
    x = torch.ones(4, 256, device="cuda", dtype=torch.bfloat16)
    x[0, 5], x[1, 7], x[2, 128:], x[3, :128] = float("nan"), float("inf"), float("nan"), 2.0**-110
    assert_as_on_the_cpu(x)


def test_a_product_of_quantized_rows_and_weights_is_near_that_of_the_inputs():
    rows, n, k = 200, 256, 1040
    x, w = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for shape in ((rows, k), (3, n, k)))
    offs = as_offs([70, 0, 125])
    q, scale_a = gg_runtime.quantize_1x128(x)
    blocks = torch.nn.functional.pad(w.float(), (0, -k % 128)).view(3, n // 128, 128, -1, 128)
    scale_b = blocks.abs().amax((2, 4)) / 448
    qw = (blocks / scale_b[:, :, None, :, None]).reshape(3, n, -1)[:, :, :k].to(torch.float8_e4m3fn)
    y = gg_runtime.grouped_mm(q, qw.mT, offs=offs, scale_a=scale_a, scale_b=scale_b)
    exact = gg_runtime.grouped_mm(x, w.mT, offs=offs)
    error = torch.linalg.vector_norm(y.float() - exact.float()) / torch.linalg.vector_norm(exact.float())
    assert float(error) < 0.05  # 2**-4 at most of each factor, and half of that on average


def test_a_graph_quantizes_what_the_memory_holds_by_then():
    from capture import captured

    x = torch.randn(64, 512, device="cuda", dtype=torch.bfloat16)
    graph, (q, scales) = captured(lambda: gg_runtime.quantize_1x128(x))
    x.copy_(torch.randn(64, 512, device="cuda"))
    graph.replay()
    right, right_scales = gg_runtime.quantize_1x128(x.cpu())
    assert torch.equal(q.cpu().float(), right.float()) and torch.equal(scales.cpu(), right_scales)
