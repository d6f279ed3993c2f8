"""The same bits: from run to run, and with batch_invariant=True whatever else is in the batch."""

import random

import pytest

torch = pytest.importorskip("torch")

import gg_runtime  # noqa: E402
from cases import DTYPES, RAGGED_ARTIFACTS, device_sm, representatives  # noqa: E402
from guarded_buffer import INTEGERS  # noqa: E402
from oracle import fill_normal  # noqa: E402
from ragged_cases import as_offs, forced, random_sizes  # noqa: E402
from ragged_oracle import group_rows  # noqa: E402

RUNS = 20
SHAPES = {"small": (64, 64), "long": (128, 4096), "wide": (2048, 512), "odd": (75, 1001)}  # N, K
SERVED = ["fp16", "bf16"] + ["e4m3"] * (device_sm() == 90)


def inputs(sizes, n, k, dtype, transposed):
    """A [rows, K] and B [E, K, N] of normal numbers; `transposed`: B lies as [E, N, K]."""
    A = torch.empty(sum(sizes), k, device="cuda", dtype=dtype)
    B = torch.empty(len(sizes), *((n, k) if transposed else (k, n)), device="cuda", dtype=dtype)
    fill_normal([A, B])
    return A, B.mT if transposed else B


def bits(array):
    return array.contiguous().view(INTEGERS[array.dtype.itemsize])


def invariant(A, B, sizes):
    return bits(gg_runtime.grouped_mm(A, B, offs=as_offs(sizes), batch_invariant=True))


def batches():
    shapes = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
    layouts = pytest.mark.parametrize("transposed", [False, True], ids=["KN", "NK"])
    dtypes = pytest.mark.parametrize("dtype", [DTYPES[name] for name in SERVED], ids=SERVED)
    return lambda test: shapes(layouts(dtypes(test)))


def picked(array, index):
    """array[index]; torch does not index every dtype."""
    return bits(array)[index].view(array.dtype)


def in_order_of(groups, B):
    """B with its matrices in the order of `groups`, laid out as B is."""
    chosen = picked(B.mT, groups).mT if B.stride(1) == 1 else picked(B, groups)
    assert chosen.stride() == B.stride()
    return chosen


@batches()
def test_a_row_alone_is_the_row_of_a_batch(shape, transposed, dtype):
    sizes = random_sizes(12, 500, seed=1, occupied=0.8)
    A, B = inputs(sizes, *shape, dtype, transposed)
    batch = invariant(A, B, sizes)
    for group, rows in group_rows(as_offs(sizes), A.shape[0]):
        for row in {rows.start, rows.stop - 1}:
            alone = invariant(A[row : row + 1], B[group : group + 1], [1])
            assert torch.equal(alone[0], batch[row]), f"row {row} of group {group}"


@batches()
def test_a_group_does_not_see_the_others(shape, transposed, dtype):
    sizes = random_sizes(12, 500, seed=2, occupied=0.8)
    A, B = inputs(sizes, *shape, dtype, transposed)
    batch = invariant(A, B, sizes)
    order = random.Random(3).sample(range(12), 12)
    ranges = torch.arange(A.shape[0]).split(sizes)
    moved = torch.cat([ranges[group] for group in order]).cuda()
    shuffled = invariant(picked(A, moved), in_order_of(order, B), [sizes[group] for group in order])
    assert torch.equal(shuffled, batch[moved])
    for group, rows in group_rows(as_offs(sizes), A.shape[0]):
        apart = invariant(A[rows], B[group : group + 1], [sizes[group]])
        assert torch.equal(apart, batch[rows]), f"group {group}"


@batches()
def test_neither_rows_nor_groups_matter(shape, transposed, dtype):
    """The rows of a batch again: in reverse, in one of 40 groups, followed by 4000 rows of another, past empty ones."""
    A, B = inputs([70, 30], *shape, dtype, transposed)
    batch = invariant(A, B, [70, 30])
    backwards = torch.arange(99, -1, -1, device="cuda")
    assert torch.equal(invariant(picked(A, backwards), in_order_of([1, 0], B), [30, 70]), batch[backwards])
    many = in_order_of([1] * 31 + [0, 1] + [0] * 7, B)
    assert torch.equal(invariant(A, many, [0] * 31 + [70, 30] + [0] * 7), batch)
    more = picked(A, torch.cat([torch.arange(100), torch.arange(70, 100).repeat(134)]).cuda())
    longer = invariant(more, B, [70, 30 * 135])
    assert torch.equal(longer[:100], batch) and torch.equal(longer[-30:], batch[70:])


@pytest.mark.parametrize("invariant", [False, True], ids=["free", "invariant"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_run_to_run(shape, invariant):
    sizes = random_sizes(12, 500, seed=4)
    A, B = inputs(sizes, *shape, torch.bfloat16, True)
    offs = as_offs(sizes)
    first = gg_runtime.grouped_mm(A, B, offs=offs, batch_invariant=invariant)
    for _ in range(RUNS):
        again = gg_runtime.grouped_mm(A, B, offs=offs, batch_invariant=invariant)
        assert torch.equal(bits(again), bits(first))


@pytest.mark.parametrize("artifact", representatives("bf16", RAGGED_ARTIFACTS), ids=lambda artifact: artifact["name"])
def test_each_kernel_run_to_run(artifact):
    sizes = [0, 256, 136, 5, 3, 0, 264]
    A, B = inputs(sizes, 264, 1024, torch.bfloat16, artifact["layout"] in ("nt", "tt"))
    if artifact["layout"][0] == "t":
        A = A.t().contiguous().t()
    offs = as_offs(sizes)
    first = bits(forced(artifact, A, B, offs=offs)).clone()
    for _ in range(RUNS):
        assert torch.equal(bits(forced(artifact, A, B, offs=offs)), first)


FITTED = [artifact for artifact in representatives("bf16", RAGGED_ARTIFACTS) if artifact["row_step"]]


@pytest.mark.parametrize("artifact", FITTED, ids=lambda artifact: artifact["name"])
def test_how_tall_a_row_tile_is_changes_no_bits(artifact):
    """The first rows of A again and again, as groups of one tile of each height, and of two."""
    sizes = list(range(artifact["row_step"], 2 * artifact["block_m"] + 1, artifact["row_step"]))
    A, B = inputs([sizes[-1]], 264, 1024, torch.bfloat16, artifact["layout"] == "nt")
    rows = torch.cat([torch.arange(size) for size in sizes]).cuda()
    C = bits(forced(artifact, picked(A, rows), in_order_of([0] * len(sizes), B), offs=as_offs(sizes)))
    parts = C.split(sizes)
    assert all(torch.equal(part, parts[-1][: len(part)]) for part in parts)


def test_any_stream_eager_or_captured_and_beside_other_work():
    sizes = random_sizes(12, 500, seed=5)
    A, B = inputs(sizes, 128, 512, torch.bfloat16, True)
    offs, x = as_offs(sizes), torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    first = bits(gg_runtime.grouped_mm(A, B, offs=offs))
    other, load = torch.cuda.Stream(), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(load):
        for _ in range(50):
            x @ x
    with torch.cuda.stream(other):
        results = [gg_runtime.grouped_mm(A, B, offs=offs) for _ in range(RUNS)]
    torch.cuda.synchronize()
    assert all(torch.equal(bits(result), first) for result in results)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = gg_runtime.grouped_mm(A, B, offs=offs)
    for _ in range(RUNS):
        graph.replay()
        assert torch.equal(bits(captured), first)
