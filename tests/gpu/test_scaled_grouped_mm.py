"""scaled_grouped_mm beside torch's own, and both against float64."""

import pytest

torch = pytest.importorskip("torch")

import gg_runtime  # noqa: E402
from cases import device_sm  # noqa: E402
from ragged_cases import as_offs  # noqa: E402
from scaled_oracle import E4M3, assert_exact, powers_of_two, sparse_integers, worst_share  # noqa: E402

F = torch.nn.functional
pytestmark = [
    pytest.mark.skipif(device_sm() != 90, reason=f"e4m3 kernels are for sm_90, this GPU is sm_{device_sm()}"),
    pytest.mark.skipif(not hasattr(F, "scaled_grouped_mm"), reason="this torch has no scaled_grouped_mm"),
]
SIZES = [(256, 512), (96, 1024), (4096, 7168)]


def row_wise():
    return F.ScalingType.RowWise


@pytest.mark.parametrize("n, k", SIZES)
def test_the_call_of_torchs_function_gives_its_bits_of_exact_sums(n, k):
    offs, rows = as_offs([40, 0, 100, 60]), 200
    A, B = sparse_integers(rows, k, device="cuda"), sparse_integers(4, n, k, device="cuda").mT
    of_a, of_b = powers_of_two((rows,), "cuda"), powers_of_two((4, n), "cuda")
    given = A, B, of_a, row_wise(), of_b, row_wise()
    C = gg_runtime.scaled_grouped_mm(*given, offs=offs)
    assert_exact(C, A, B, offs, of_a, of_b)
    assert torch.equal(C, F.scaled_grouped_mm(*given, offs=offs))


@pytest.mark.parametrize("n, k", SIZES)
def test_it_errs_less_than_it_may(n, k):
    offs, rows = as_offs([40, 0, 100, 60]), 200
    A = (0.25 * torch.randn(rows, k, device="cuda")).to(E4M3)
    B = (0.25 * torch.randn(4, n, k, device="cuda")).to(E4M3).mT
    of_a, of_b = 0.5 + torch.rand(rows, device="cuda"), 0.5 + torch.rand(4, n, device="cuda")
    C = gg_runtime.scaled_grouped_mm(A, B, of_a, row_wise(), of_b, row_wise(), offs=offs)
    assert worst_share(C, A, B, offs, of_a, of_b) <= 1
