"""The forms on which PyTorch tests its own grouped_mm: no further from the float32 product than twice what it is."""

import pytest

torch = pytest.importorskip("torch")

import gg_runtime  # noqa: E402
from ragged_oracle import group_rows, product  # noqa: E402

FLAGS = [False, True]


def normal(*shape, dtype):
    return torch.randn(*shape, device="cuda", dtype=dtype)


def padded(extent: int) -> int:
    """torch needs leading strides of whole 16 bytes."""
    return -(-extent // 8) * 8


def torch_product(A, B, offs, fused: bool):
    """torch.nn.functional.grouped_mm if `fused`, else a loop of torch.mm."""
    if fused:
        return torch.nn.functional.grouped_mm(A, B, offs=offs)
    C = torch.zeros(A.shape[0], B.shape[2], device="cuda", dtype=A.dtype)
    for group, rows in group_rows(offs, A.shape[0]):
        C[rows] = A[rows] @ B[group]
    return C


def assert_as_close_as_torch(A, B, offs, fused: bool) -> None:
    """Element by element within each group."""
    out = torch.full((A.shape[0], B.shape[2]), float("nan"), device="cuda", dtype=A.dtype)
    gg_runtime.grouped_mm(A, B, offs=offs, out=out)
    theirs, exact = torch_product(A, B, offs, fused), product(A, B, offs, dtype=torch.float32)
    for group, rows in group_rows(offs, A.shape[0]):
        error, allowed = ((C[rows].float() - exact[rows]).abs().max().item() for C in (out, theirs))
        assert error <= 2 * allowed + 1e-5, f"group {group}: {error} against {allowed} of torch"
    assert torch.equal(gg_runtime.grouped_mm(A, B, offs=offs, out_dtype=A.dtype), out)


def offs_on_device(ends):
    return torch.tensor(ends, dtype=torch.int32, device="cuda")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("b_row_major", FLAGS, ids=["b column", "b row"])
@pytest.mark.parametrize("a_row_major", FLAGS, ids=["a column", "a row"])
@pytest.mark.parametrize("strided", FLAGS, ids=["dense", "strided"])
def test_2d_3d(strided, a_row_major, b_row_major, dtype):
    m, n, k, groups, times = 16, 32, 64, 4, 1 + strided
    if a_row_major:
        A = normal(m * groups, k * times, dtype=dtype)[:, :k]
    else:
        A = normal(k, (m + 2 * strided) * groups, dtype=dtype).t()[: m * groups]
    if b_row_major:
        B = normal(groups * times, n, k * times, dtype=dtype)[::times, :, :k]
    else:
        B = normal(groups * times, k * times, n, dtype=dtype).mT[::times, :, :k]
    for first in (m, 2 * m):  # then group 1 is empty
        # torch's kernel takes bfloat16 alone.
        assert_as_close_as_torch(A, B.mT, offs_on_device([first, 2 * m, 3 * m, 4 * m]), dtype is torch.bfloat16)


@pytest.mark.parametrize("b_row_major", FLAGS, ids=["b column", "b row"])
@pytest.mark.parametrize("ends", [[0, 1, 3, 3, 5], [0, 8, 16, 16, 19], [0, 1, 6, 6, 7]], ids=str)
@pytest.mark.parametrize("a_row_major", FLAGS, ids=["a column", "a row"])
def test_odd_2d_3d(a_row_major, b_row_major, ends):
    n, k, m, groups = 7, 259, ends[-1], len(ends)
    dtype = torch.bfloat16
    if a_row_major:
        A = normal(m, padded(k), dtype=dtype)[:, :k]
    else:
        A = normal(k, padded(m), dtype=dtype).t()[:m]
    if b_row_major:
        B = normal(groups, n, padded(k), dtype=dtype)[:, :, :k]
    else:
        B = normal(groups, k, padded(n), dtype=dtype).mT[:, :n]
    # torch's kernel needs column-major groups to start on 16 bytes.
    fused = a_row_major or all(end % 8 == 0 for end in ends[:-1])
    assert_as_close_as_torch(A, B.mT, offs_on_device(ends), fused)
