"""Rows of more than 2**31 elements through the kernels around products: offsets are of 64 bits."""

import pytest

torch = pytest.importorskip("torch")

import gg_runtime  # noqa: E402
from cases import device_sm  # noqa: E402
from ragged_cases import as_offs  # noqa: E402
from up_projection_oracle import assert_one_rounding  # noqa: E402

ROWS, COLUMNS = 300000, 8192
PICKED = [0, 1000, 131072, 262143, 262144, ROWS - 1]  # around 2**30 and 2**31 elements


def rows_of_zeros():
    """[ROWS, COLUMNS], of which PICKED are random."""
    rows = torch.zeros(ROWS, COLUMNS, device="cuda", dtype=torch.bfloat16)
    rows[PICKED] = torch.randn(len(PICKED), COLUMNS, device="cuda").bfloat16()
    return rows


@pytest.mark.gpu_gib(20)
@pytest.mark.skipif(device_sm() != 90, reason="e4m3 kernels are for sm_90")
def test_quantization():
    x = rows_of_zeros()
    q, scales = gg_runtime.quantize_1x128(x)
    for found, right in zip((q, scales), gg_runtime.quantize_1x128(x[PICKED])):
        assert torch.equal(found[PICKED].float(), right.float())
    others = torch.ones(ROWS, device="cuda", dtype=torch.bool)
    others[PICKED] = False
    assert not q.view(torch.uint8)[others].any() and bool((scales[others] == 1).all())


@pytest.mark.gpu_gib(20)
def test_sums_of_rows():
    y = rows_of_zeros()
    places = torch.arange(ROWS - 1, -1, -1, device="cuda", dtype=torch.int32)
    out = gg_runtime.combine(y, places[:, None])
    assert torch.equal(out.flip(0), y)


@pytest.mark.gpu_gib(30)
def test_gathered_rows_and_an_activation_of_its_own():
    """K of an odd size: no kernel gathers it by itself."""
    source, k = 5000, COLUMNS - 1
    A = torch.zeros(source, k, device="cuda", dtype=torch.bfloat16)
    A[:, -64:] = torch.randint(-2, 3, (source, 64), device="cuda")
    B = torch.randint(-2, 3, (2, k, 16), device="cuda").bfloat16()
    index = torch.randint(0, source, (ROWS,), device="cuda")
    given = {"offs": as_offs([1000, ROWS - 1000]), "a_index": index, "activation": "relu"}
    assert gg_runtime.explain(A, B, **given).launches > 1
    out = gg_runtime.grouped_mm(A, B, **given)
    picked = torch.tensor(PICKED, device="cuda")
    z = torch.einsum("rk,rkn->rn", A[index[picked]].double(), B[(picked >= 1000).long()].double())
    assert_one_rounding(out[picked], z, "relu")


@pytest.mark.gpu_gib(30)
@pytest.mark.skipif(device_sm() != 90, reason="e4m3 kernels are for sm_90")
def test_a_gated_activation_of_its_own():
    A = torch.randint(-2, 3, (ROWS, 16), device="cuda").float().to(torch.float8_e4m3fn)
    B = torch.randint(-2, 3, (1, 2 * COLUMNS, 16), device="cuda").float().to(torch.float8_e4m3fn).mT
    given = {"offs": as_offs([ROWS]), "activation": "swiglu", "gate_up": "up_first", "out_dtype": torch.bfloat16}
    assert gg_runtime.explain(A, B, **given).launches > 1
    out = gg_runtime.grouped_mm(A, B, **given)
    assert_one_rounding(out[PICKED], A[PICKED].double() @ B[0].double(), "swiglu", "up_first")
