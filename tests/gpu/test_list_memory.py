"""Lists in device memory: written again and again at one address, read on other streams, in graphs, after their Plan is
gone. Each test here was wrong, or ended in an illegal access, before the fence and the events that it is about."""

import gc

import pytest

torch = pytest.importorskip("torch")

import gg_runtime  # noqa: E402
from capture import captured  # noqa: E402
from cases import DTYPES, LIST_ARTIFACTS, SCALED_LIST_ARTIFACTS, legal  # noqa: E402
from gpu_busy import occupy  # noqa: E402
from oracle import assert_exact, exact_products, fill_sparse_integers  # noqa: E402
from scaled_oracle import list_shapes  # noqa: E402

# What reads descriptors in memory: every config for fp16, and every one for e4m3.
HOPPER = [a for a in LIST_ARTIFACTS if a["kernel"] == "hopper" and (a["dtype"], a["layout"]) == ("fp16", "nn")]
OF_FP8 = ("hopper", "hopper_tensor_scales")
HOPPER += [a for a in LIST_ARTIFACTS if a["kernel"] in OF_FP8 and (a["dtype"], a["out_dtype"]) == ("e4m3", "bf16")]
HOPPER += [a for a in SCALED_LIST_ARTIFACTS if a["kernel"].startswith("hopper") and a["out_dtype"] == "bf16"]
ALIGNED = [a for a in LIST_ARTIFACTS if (a["dtype"], a["layout"], a["alignment"]) == ("fp16", "nn", 16)]
OTHERS = [config for kernel in ("basic", "tma") for config in [a for a in ALIGNED if a["kernel"] == kernel][:1]]


def names(artifacts):
    return [artifact["name"] for artifact in artifacts]


class Set:
    """A list of its own sizes and tensors; B column-major for e4m3, as its kernels take it. Scales are 1."""

    def __init__(self, artifact, groups: int, shape, seed: int):
        dtype, out_dtype = DTYPES[artifact["dtype"]], DTYPES[artifact["out_dtype"]]
        m, n, k = legal(artifact, shape)
        self.A = [torch.empty(m, k, device="cuda", dtype=dtype) for _ in range(groups)]
        self.B = [torch.empty(n, k, device="cuda", dtype=dtype).mT for _ in range(groups)]
        if artifact["layout"] == "nn":
            self.B = [torch.empty(k, n, device="cuda", dtype=dtype) for _ in range(groups)]
        self.C = [torch.empty(m, n, device="cuda", dtype=out_dtype) for _ in range(groups)]
        self.scales = {}
        if artifact in SCALED_LIST_ARTIFACTS:
            shapes = zip(("scale_a", "scale_b"), list_shapes(artifact["scaling"], m, n, k))
            self.scales = {name: [torch.ones(shape, device="cuda") for _ in self.A] for name, shape in shapes}
        fill_sparse_integers([*self.A, *self.B], seed)
        self.expected = exact_products(self.A, self.B, out_dtype)

    def poison(self):
        for c in self.C:
            c.fill_(float("nan"))

    def wrong(self) -> int:
        return sum(not torch.equal(c.float(), e.float()) for c, e in zip(self.C, self.expected))


def plain_sets(groups: int, many: int = 4, shape=(48, 64, 96)):
    artifact = OTHERS[0]
    m, n, k = shape
    return [Set(artifact, groups, (m + 8 * s, n, k + 16 * (s // 2)), s) for s in range(many)]


@pytest.mark.parametrize("groups", [9, 33, 132, 1000])
@pytest.mark.parametrize("artifact", [*HOPPER, *OTHERS], ids=names([*HOPPER, *OTHERS]))
def test_lists_that_take_turns_at_one_address(artifact, groups):
    """Four lists in turn, so that the allocator gives the memory of one to the next: eager, and in a graph."""
    sets = [Set(artifact, groups, (40 + 8 * (s % 2), 64, 64 + 16 * (s // 2)), s) for s in range(4)]

    def call():
        for s in sets:
            gg_runtime.Plan(s.A, s.B, out=s.C, **s.scales, variant=artifact["name"]).run()

    def wrong():
        torch.cuda.synchronize()
        return [s.wrong() for s in sets]

    for s in sets:
        s.poison()
    call()
    call()
    assert wrong() == [0] * 4, "eager"
    graph, _ = captured(call)
    for replay in range(3):
        for s in sets:
            s.poison()
        graph.replay()
        assert wrong() == [0] * 4, f"replay {replay}"


@pytest.mark.parametrize("groups", [12, 24, 64])
def test_lists_that_take_turns_by_the_librarys_own_choice(groups):
    sets = plain_sets(groups, shape=(128, 128, 256))
    graph, _ = captured(lambda: [gg_runtime.group_gemm(s.A, s.B, out=s.C) for s in sets])
    for _ in range(3):
        for s in sets:
            s.poison()
        graph.replay()
        torch.cuda.synchronize()
        assert [s.wrong() for s in sets] == [0] * len(sets)


def dirt_of_every_size() -> list:
    """Takes the place of any list whose memory was given back."""
    sizes = (512, 4096, 8192, 16384, 32768, 65536) * 8
    return [torch.full((size,), 255, device="cuda", dtype=torch.uint8) for size in sizes]


def dirty_memory():
    """So that what the allocator hands out next is no list, and surely not the one that is to be written."""
    torch.full((1 << 20,), 255, device="cuda", dtype=torch.uint8)
    torch.cuda.synchronize()


@pytest.mark.parametrize("groups", [33, 64])
@pytest.mark.parametrize("trial", range(3))
def test_a_plan_made_behind_a_busy_stream_runs_on_another(groups, trial):
    (s,) = plain_sets(groups, 1)
    s.poison()
    maker, runner = torch.cuda.Stream(), torch.cuda.Stream()
    dirty_memory()
    with torch.cuda.stream(maker):
        occupy(50_000_000)
        plan = gg_runtime.Plan(s.A, s.B, out=s.C)
    with torch.cuda.stream(runner):
        plan.run()
    torch.cuda.synchronize()
    assert s.wrong() == 0


@pytest.mark.parametrize("groups", [33, 64])
def test_a_plan_made_behind_a_busy_stream_runs_in_a_capture(groups):
    (s,) = plain_sets(groups, 1)
    maker, runner = torch.cuda.Stream(), torch.cuda.Stream()
    dirty_memory()
    with torch.cuda.stream(maker):
        occupy(200_000_000)
        plan = gg_runtime.Plan(s.A, s.B, out=s.C)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(runner):
        graph.capture_begin()
        plan.run()
        graph.capture_end()
        s.poison()
        graph.replay()
    torch.cuda.synchronize()
    assert s.wrong() == 0


def test_a_plan_made_in_a_capture_runs_after_the_first_replay():
    (s,) = plain_sets(64, 1)
    graph, plan = captured(lambda: gg_runtime.Plan(s.A, s.B, out=s.C))
    s.poison()
    torch.cuda.synchronize()
    with pytest.raises(RuntimeError, match="replay the graph first"):
        plan.run()
    with pytest.raises(RuntimeError, match="replay the graph first"):
        captured(plan.run)
    torch.cuda.synchronize()
    occupy(50_000_000)
    graph.replay()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        plan.run()
    torch.cuda.synchronize()
    assert s.wrong() == 0
    second, _ = captured(plan.run)
    s.poison()
    second.replay()
    torch.cuda.synchronize()
    assert s.wrong() == 0


@pytest.mark.parametrize("groups", [33, 64])
def test_a_plan_that_goes_while_it_runs_on_another_stream_keeps_its_list(groups):
    (s,) = plain_sets(groups, 1)
    s.poison()
    plan = gg_runtime.Plan(s.A, s.B, out=s.C)
    torch.cuda.synchronize()
    runner = torch.cuda.Stream()
    with torch.cuda.stream(runner):
        occupy(50_000_000)
        plan.run()
    del plan
    gc.collect()
    dirt = dirt_of_every_size()
    torch.cuda.synchronize()
    assert s.wrong() == 0 and dirt


@pytest.mark.parametrize("groups", [33, 64])
def test_a_graph_keeps_the_list_of_a_plan_that_is_gone(groups):
    (s,) = plain_sets(groups, 1)
    plan = gg_runtime.Plan(s.A, s.B, out=s.C)
    graph, _ = captured(plan.run)
    del plan
    gc.collect()
    dirt = dirt_of_every_size()
    for _ in range(3):
        s.poison()
        graph.replay()
        torch.cuda.synchronize()
        assert s.wrong() == 0 and dirt
    graph.reset()
    del graph
    torch.cuda.synchronize()
    (other,) = plain_sets(groups, 1)
    for _ in range(3):  # what the graph let go of is freed here
        assert_exact(gg_runtime.Plan(other.A, other.B).run(), other.A, other.B)


def test_plans_and_graphs_that_come_and_go_keep_no_memory():
    (s,) = plain_sets(64, 1)
    side = torch.cuda.Stream()

    def cycle():
        plan = gg_runtime.Plan(s.A, s.B, out=s.C)
        with torch.cuda.stream(side):
            plan.run()
        graph, _ = captured(plan.run)
        graph.replay()
        torch.cuda.synchronize()

    def allocated():
        gc.collect()
        gg_runtime.Plan(s.A[:1], s.B[:1], out=s.C[:1])
        torch.cuda.synchronize()
        gg_runtime.Plan(s.A[:1], s.B[:1], out=s.C[:1])
        return torch.cuda.memory_allocated()

    cycle()
    before = allocated()
    for _ in range(20):
        cycle()
    assert allocated() == before


def test_a_checked_plan_notices_storage_that_moved():
    (s,) = plain_sets(4, 1)
    plan = gg_runtime.Plan(s.A, s.B, out=s.C, checked=True)
    plan.run()
    s.A[2].set_(torch.empty_like(s.A[2]))
    with pytest.raises(RuntimeError, match=r"A\[2\] has other memory"):
        plan.run()


@pytest.mark.parametrize("call", [gg_runtime.group_gemm, lambda A, B, out: gg_runtime.Plan(A, B, out=out).run()])
def test_captured_lists_of_a_framework_whose_pool_knows_no_graphs(cupy, call):
    """What is allocated behind the captured calls would be their lists' memory, were it not the graph's."""
    sets = plain_sets(33, 2)
    stream = cupy.cuda.Stream(non_blocking=True)
    arrays = [[[cupy.from_dlpack(x.data) for x in matrices] for matrices in (s.A, s.B, s.C)] for s in sets]
    with stream:
        for A, B, C in arrays:
            call(A, B, out=C)
        stream.begin_capture()
        for A, B, C in arrays:
            call(A, B, out=C)
        graph = stream.end_capture()
        dirt = [cupy.full(size, 255, "uint8") for size in (4096, 8192, 16384, 32768) * 16]
        for _ in range(3):
            stream.synchronize()
            for s in sets:
                s.poison()
            torch.cuda.synchronize()
            graph.launch()
            stream.synchronize()
            assert [s.wrong() for s in sets] == [0, 0]
            assert all(bool((block == 255).all()) for block in dirt)
