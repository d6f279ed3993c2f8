"""grouped_mm past 2^31 elements: every offset must be 64-bit."""

import gc

import pytest

torch = pytest.importorskip("torch")

from cases import RAGGED_ARTIFACTS, representatives  # noqa: E402
from ragged_cases import as_offs, forced  # noqa: E402
from ragged_oracle import group_rows  # noqa: E402

PAST_INT32 = 2**31
LONG = PAST_INT32 // 8 + 136  # 8 of these are past it
NEEDED_BYTES = 16 << 30
ARTIFACTS = [a for a in representatives("bf16", RAGGED_ARTIFACTS) if a["layout"] in ("nn", "nt", "strided")]


def kernels():
    return pytest.mark.parametrize("artifact", ARTIFACTS, ids=lambda artifact: artifact["name"])


@pytest.fixture(autouse=True)
def memory(cuda):
    gc.collect()
    cuda.empty_cache()
    free, _ = cuda.mem_get_info()
    if free < NEEDED_BYTES:
        pytest.skip(f"{free >> 30} GiB of GPU memory are free, {NEEDED_BYTES >> 30} are needed")
    yield
    gc.collect()
    cuda.empty_cache()


def integers(*shape):
    return torch.randint(-2, 3, shape, device="cuda", dtype=torch.int8).bfloat16()


def nan(*shape):
    return torch.full(shape, float("nan"), device="cuda", dtype=torch.bfloat16)


def weights(artifact, groups, k, n):
    return integers(groups, n, k).mT if artifact["layout"] == "nt" else integers(groups, k, n)


def assert_groups(C, A, B, offs, rows=2**22):
    """Small integers: any kernel's result is exact, so that the two must be equal; a part of the rows at a time."""
    for group, own in group_rows(offs, A.shape[0]):
        for start in range(own.start, own.stop, rows):
            part = slice(start, min(start + rows, own.stop))
            assert torch.equal(C[part], A[part] @ B[group]), f"rows from {start} on, of group {group}"


@kernels()
def test_more_elements_than_int32_in_A_and_out(artifact):
    A, B, C = integers(LONG, 8), weights(artifact, 3, 8, 8), nan(LONG, 8)
    offs = as_offs([1000, LONG - 3000, 1500])
    forced(artifact, A, B, offs=offs, out=C)
    assert_groups(C, A, B, offs)
    assert bool((C[LONG - 500 :] == 0).all())


@kernels()
def test_more_elements_than_int32_in_B(artifact):
    """Three groups whose matrices lie 2^30 + 64 elements apart, the last one past 2^31."""
    size, apart = 64, PAST_INT32 // 2 + 64
    A, C, near = integers(3 * size, size), nan(3 * size, size), weights(artifact, 3, size, size)
    far = torch.zeros(2 * apart + size * size, device="cuda", dtype=torch.bfloat16)
    B = far.as_strided(near.shape, (apart, *near.stride()[1:]))
    B.copy_(near)
    offs = as_offs([size] * 3)
    forced(artifact, A, B, offs=offs, out=C)
    assert_groups(C, A, near, offs)


@kernels()
def test_leading_strides_past_int32(artifact):
    """Three rows that lie 2^31 + 64 elements apart, as A and then as the output."""
    pitch, size = PAST_INT32 + 64, 64
    apart = torch.zeros(2 * pitch + size, device="cuda", dtype=torch.bfloat16)
    far = apart.as_strided((3, size), (pitch, 1))
    near, B, C, offs = integers(3, size), weights(artifact, 2, size, size), nan(3, size), as_offs([1, 2])
    far.copy_(near)
    forced(artifact, far, B, offs=offs, out=C)
    assert_groups(C, near, B, offs)
    far.fill_(float("nan"))
    forced(artifact, near, B, offs=offs, out=far)
    assert_groups(far, near, B, offs)
    far.zero_()
    assert not bool(apart.any()), "the output was written outside of its rows"


@kernels()
def test_more_columns_than_int32_has_room_for_in_out(artifact):
    """rows * N past 2^31 through N: 2^27 + 136 columns of 17 rows."""
    n, k, rows = PAST_INT32 // 16 + 136, 8, 17
    A, B, C, offs = integers(rows, k), weights(artifact, 1, k, n), nan(rows, n), as_offs([rows])
    forced(artifact, A, B, offs=offs, out=C)
    for start in range(0, n, 2**22):
        part = slice(start, start + 2**22)
        assert torch.equal(C[:, part], A @ B[0, :, part]), f"columns from {start} on"
