"""Kernels in clusters of CTAs: the bits of those without, whatever the split, the stream and what ran before."""

import itertools
import random

import pytest

torch = pytest.importorskip("torch")

import gg_runtime  # noqa: E402
from capture import captured  # noqa: E402
from cases import SCALED_ARTIFACTS, device_sm, legal  # noqa: E402
from ragged_cases import as_offs, random_sizes  # noqa: E402
from test_fp8_scales import integers, normal, run, scales  # noqa: E402

pytestmark = pytest.mark.skipif(device_sm() != 90, reason=f"clusters are of sm_90, this GPU is sm_{device_sm()}")

OWN = [artifact for artifact in SCALED_ARTIFACTS if artifact["sm"] == device_sm()]
SAME = ("scaling", "dtype", "out_dtype", "layout", "alignment", "block_m", "block_n", "block_k", "kernel")
PAIRS = [
    pytest.param(one, plain, id=one["name"])
    for one, plain in itertools.product(OWN, OWN)
    if (one["cluster"], plain["cluster"]) == (2, 1) and all(one[fact] == plain[fact] for fact in SAME)
]


def pairs():
    return pytest.mark.parametrize(("clustered", "plain"), PAIRS)


def random_scales(shape):
    return torch.rand(shape, device="cuda") + 0.5


def problem(artifact, sizes, n, k, tail=0, make=normal):
    rows, n, k = legal(artifact, (sum(sizes) + tail, n, k))
    A, B = make(rows, k), make(len(sizes), n, k).mT
    return A, B, as_offs(sizes), *scales(artifact["scaling"], rows, len(sizes), n, k, random_scales)


def test_there_are_some():
    assert {clustered.values[0]["scaling"] for clustered in PAIRS} == {"block"}


@pairs()
@pytest.mark.parametrize("seed", range(6))
def test_the_bits_are_those_without_clusters(clustered, plain, seed):
    """Even and odd counts of row tiles, short ones, one alone, bands of them; even and odd counts of columns."""
    numbers = random.Random(seed)
    for columns in range(1, 8):
        groups, each = numbers.choice([(1, 2500), (3, 700), (17, 200), (64, 60), (130, 130), (8, 1100)])
        sizes = random_sizes(groups, groups * each, seed, numbers.choice([1.0, 0.6]))
        n = 256 * columns - numbers.choice([0, 16, 128, 240])
        given = problem(clustered, sizes, n, numbers.choice([128, 400, 1024]), numbers.choice([0, 5, 300]))
        assert torch.equal(run(clustered, *given), run(plain, *given)), (sizes, n)


@pairs()
def test_graphs_with_other_ends(clustered, plain):
    """One captured launch serves splits of many row tiles, of none, and of odd and even counts, again and again."""
    rows, groups = 3000, 12
    A, B, offs, *of = problem(clustered, [rows // groups] * groups, 1280, 640)
    out = torch.empty(rows, 1280, device="cuda", dtype=torch.bfloat16)
    plan = gg_runtime.Plan(A, B, offs=offs, out=out, scale_a=of[0], scale_b=of[1], variant=clustered["name"])
    graph, _ = captured(plan.run)
    for seed in range(8):
        offs.copy_(as_offs(random_sizes(groups, rows - 100 * (seed % 3), seed, 1.0 if seed % 2 else 0.3)))
        out.fill_(float("nan"))
        graph.replay()
        assert torch.equal(out, run(plain, A, B, offs, *of)), seed


@pairs()
def test_beside_others_on_streams(clustered, plain):
    """A cluster starts when two neighbouring multiprocessors have room, whatever else is on the GPU."""
    given = [problem(clustered, random_sizes(16, 5000, seed), 2048, 1024) for seed in range(4)]
    right = [run(plain, *one) for one in given]
    streams = [torch.cuda.Stream() for _ in given]
    filler = integers(64, 128).to(torch.bfloat16)
    torch.cuda.synchronize()
    for _ in range(20):
        found = []
        for stream, one in zip(streams, given):
            with torch.cuda.stream(stream):
                filler.clone().mul_(2)
                found.append(run(clustered, *one))
        torch.cuda.synchronize()
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(found, right))
