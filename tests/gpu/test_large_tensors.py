"""Matrices and strides past 2^31 elements: every offset must be 64-bit."""

import pytest

torch = pytest.importorskip("torch")

import gg_runtime  # noqa: E402
from cases import representatives  # noqa: E402
from past_int32 import LONG, PAST_INT32, assert_rows, integers, nan  # noqa: E402

pytestmark = pytest.mark.gpu_gib(24)
ARTIFACTS = [artifact for artifact in representatives() if artifact["layout"] in ("nn", "nt", "strided")]


def kernels():
    return pytest.mark.parametrize("artifact", ARTIFACTS, ids=lambda artifact: artifact["name"])


def as_B(matrix, artifact):
    return matrix.t().contiguous().t() if artifact["layout"] == "nt" else matrix


@kernels()
def test_more_elements_than_int32_in_A_and_out(artifact):
    A, B, C = integers(LONG, 8), integers(8, 8), nan(LONG, 8)
    gg_runtime.Plan([A], [as_B(B, artifact)], out=[C], variant=artifact["name"]).run()
    assert_rows(C, A, B)


@kernels()
def test_more_elements_than_int32_in_B_and_out(artifact):
    A, C = integers(8, 8), nan(8, LONG)
    B = integers(LONG, 8).t() if artifact["layout"] == "nt" else integers(8, LONG)
    gg_runtime.Plan([A], [B], out=[C], variant=artifact["name"]).run()
    assert_rows(C.t(), B.t(), A.t())


@kernels()
def test_leading_stride_past_int32(artifact):
    """Three rows that lie 2^31 + 64 elements apart, as A and then as the output."""
    pitch, size, variant = PAST_INT32 + 64, 64, artifact["name"]
    apart = torch.zeros(2 * pitch + size, device="cuda", dtype=torch.float16)
    far = apart.as_strided((3, size), (pitch, 1))
    near, B, C = integers(3, size), integers(size, size), nan(3, size)
    far.copy_(near)
    gg_runtime.Plan([far], [as_B(B, artifact)], out=[C], variant=variant).run()
    assert torch.equal(C, near @ B)
    far.fill_(float("nan"))
    gg_runtime.Plan([near], [as_B(B, artifact)], out=[far], variant=variant).run()
    assert torch.equal(far, near @ B)
    far.zero_()
    assert not bool(apart.any()), "the output was written outside of its rows"


def test_the_library_chooses_rightly_for_a_large_one_among_small_ones():
    A, B = [integers(LONG, 8), integers(100, 50)], [integers(8, 8), integers(50, 70)]
    C = gg_runtime.group_gemm(A, B)
    assert_rows(C[0], A[0], B[0])
    assert torch.equal(C[1], A[1] @ B[1])


def test_a_dimension_past_int32_is_refused():
    A = integers(1, 1).expand(PAST_INT32, 1)
    with pytest.raises(ValueError, match=str(PAST_INT32)):
        gg_runtime.group_gemm([A], [integers(1, 1)])
