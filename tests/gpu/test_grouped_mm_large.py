"""grouped_mm past 2^31 elements, where every offset must be 64-bit, and past the rows that TMA descriptors reach."""

import pytest

torch = pytest.importorskip("torch")

import gg_runtime  # noqa: E402
from cases import RAGGED_ARTIFACTS, representatives  # noqa: E402
from past_int32 import LONG, PAST_INT32, assert_rows, integers, nan  # noqa: E402
from ragged_cases import as_offs, forced  # noqa: E402
from ragged_oracle import group_rows  # noqa: E402
from scaled_oracle import group_ends  # noqa: E402

pytestmark = pytest.mark.gpu_gib(16)
ARTIFACTS = [a for a in representatives(among=RAGGED_ARTIFACTS) if a["layout"] in ("nn", "nt", "strided")]
DESCRIBED = [artifact for artifact in ARTIFACTS if artifact["kernel"] == "hopper_ragged"]
MOST_DESCRIBED = 2**30  # rows: the descriptors of A and the output count a group's rows back from there


def kernels(chosen=ARTIFACTS):
    return pytest.mark.parametrize("artifact", chosen, ids=lambda artifact: artifact["name"])


def weights(artifact, groups, k, n):
    return integers(groups, n, k).mT if artifact["layout"] == "nt" else integers(groups, k, n)


def assert_groups(C, A, B, offs):
    for group, own in group_rows(offs, A.shape[0]):
        assert_rows(C[own], A[own], B[group], f" of group {group}")
    assert bool((C[group_ends(offs, A.shape[0])[-1] :] == 0).all()), "rows past the last group are not zero"


@kernels()
def test_more_elements_than_int32_in_A_and_out(artifact):
    A, B, C = integers(LONG, 8), weights(artifact, 3, 8, 8), nan(LONG, 8)
    offs = as_offs([1000, LONG - 3000, 1500])
    forced(artifact, A, B, offs=offs, out=C)
    assert_groups(C, A, B, offs)


@kernels()
def test_more_elements_than_int32_in_B(artifact):
    """Three groups whose matrices lie 2^30 + 64 elements apart, the last one past 2^31."""
    size, apart = 64, PAST_INT32 // 2 + 64
    A, C, near = integers(3 * size, size), nan(3 * size, size), weights(artifact, 3, size, size)
    far = torch.zeros(2 * apart + size * size, device="cuda", dtype=torch.float16)
    B = far.as_strided(near.shape, (apart, *near.stride()[1:]))
    B.copy_(near)
    offs = as_offs([size] * 3)
    forced(artifact, A, B, offs=offs, out=C)
    assert_groups(C, A, near, offs)


@kernels()
def test_leading_strides_past_int32(artifact):
    """Three rows that lie 2^31 + 64 elements apart, as A and then as the output."""
    pitch, size = PAST_INT32 + 64, 64
    apart = torch.zeros(2 * pitch + size, device="cuda", dtype=torch.float16)
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


def repeating(rows):
    """[rows, 8] that starts again after a prime number of rows, so that a step that wraps shows."""
    A = torch.empty(rows, 8, device="cuda", dtype=torch.float16)
    some = integers(1_000_003, 8)
    for part in A.split(len(some)):
        part.copy_(some[: len(part)])
    return A


@pytest.mark.gpu_gib(36)
@kernels(DESCRIBED)
def test_as_many_rows_as_a_descriptor_counts(artifact):
    A, B, C = repeating(MOST_DESCRIBED), weights(artifact, 3, 8, 8), nan(MOST_DESCRIBED, 8)
    for sizes in ([0, MOST_DESCRIBED, 0], [1000, MOST_DESCRIBED - 3000, 1500]):
        offs = as_offs(sizes)
        C.fill_(float("nan"))
        forced(artifact, A, B, offs=offs, out=C)
        assert_groups(C, A, B, offs)


@pytest.mark.gpu_gib(36)
def test_more_rows_than_a_descriptor_counts_are_reached_through_pointers():
    rows = MOST_DESCRIBED + 300
    A, B, C = repeating(rows), integers(3, 8, 8), nan(rows, 8)
    offs = as_offs([1000, MOST_DESCRIBED - 983, 200])  # the second group ends, and the third begins, past 2^30
    assert gg_runtime.explain(A, B, offs=offs, out=C).variant.startswith("basic_ragged")
    gg_runtime.grouped_mm(A, B, offs=offs, out=C)
    assert_groups(C, A, B, offs)
