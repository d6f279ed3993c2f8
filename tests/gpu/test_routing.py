"""route: a stable counting sort, whatever the ids are, in graphs too."""

import pytest

torch = pytest.importorskip("torch")

import gg_runtime  # noqa: E402
from capture import captured, node_count  # noqa: E402

# tokens, k, experts: each kernel (255, 511, 1023 experts at most), one launch and two, a chunk filled to its last entry
SHAPES = [
    (0, 8, 4), (1, 1, 1), (3, 2, 5), (64, 8, 128), (256, 8, 255), (257, 8, 128), (255, 7, 256), (4096, 8, 512),
    (1, 16, 1023), (700, 16, 1023), (32768, 8, 128), (131072, 4, 60), (33000, 1, 1),
]  # fmt: skip
INTEGERS = [torch.int32, torch.int64]


def expected(ids, experts, expert_map=None) -> gg_runtime.Routing:
    groups = ids.reshape(-1).long()
    if expert_map is not None:
        known = (groups >= 0) & (groups < len(expert_map))
        groups = torch.where(known, expert_map.long()[groups.clamp(0, len(expert_map) - 1)], -1)
    groups = torch.where((groups >= 0) & (groups < experts), groups, experts)
    order = torch.sort(groups, stable=True).indices
    ends = torch.bincount(groups, minlength=experts + 1)[:experts].cumsum(0)
    place = torch.arange(len(order), device="cuda")
    slot = torch.where(place < ends[-1], order, -1)
    token = torch.where(slot >= 0, slot // max(ids.shape[1], 1), -1)
    inverse = torch.empty_like(order)
    inverse[order] = torch.where(place < ends[-1], place, -1)
    return gg_runtime.Routing(ends.int(), token.int(), slot.int(), inverse.int().reshape(ids.shape))


def assert_routed(routing, *arguments) -> None:
    for name, got, want in zip(routing._fields, routing, expected(*arguments)):
        assert got.dtype == torch.int32 and got.is_contiguous()
        assert torch.equal(got, want), f"{name}: {(got != want).sum().item()} of {got.numel()} differ"


@pytest.mark.parametrize("integer", INTEGERS, ids=str)
@pytest.mark.parametrize(("tokens", "k", "experts"), SHAPES)
def test_slots_are_sorted_by_expert_and_what_is_no_expert_drops_out(tokens, k, experts, integer):
    ids = torch.randint(-2, experts + 3, (tokens, k), device="cuda", dtype=integer)
    assert_routed(gg_runtime.route(ids, experts), ids, experts)


@pytest.mark.parametrize("map_integer", INTEGERS, ids=str)
@pytest.mark.parametrize("integer", INTEGERS, ids=str)
def test_the_expert_map_is_asked_for_ids_that_it_knows(integer, map_integer):
    ids = torch.randint(-3, 140, (1000, 8), device="cuda", dtype=integer)
    expert_map = torch.randint(-1, 40, (128,), device="cuda", dtype=map_integer)
    assert_routed(gg_runtime.route(ids, 32, expert_map), ids, 32, expert_map)


@pytest.mark.parametrize("tokens", [9, 900])
def test_a_map_that_knows_no_expert_drops_all(tokens):
    ids = torch.randint(0, 4, (tokens, 8), device="cuda")
    routing = gg_runtime.route(ids, 4, torch.empty(0, device="cuda", dtype=torch.int32))
    assert routing.ends.tolist() == [0] * 4
    assert all(array.eq(-1).all() for array in (routing.token, routing.slot, routing.inverse))


@pytest.mark.parametrize("integer", INTEGERS, ids=str)
def test_ids_may_hold_anything(integer):
    limits = torch.iinfo(integer)
    ids = torch.randint(limits.min, limits.max, (5000, 4), device="cuda", dtype=integer)
    ids[::3] = torch.randint(0, 16, ids[::3].shape, device="cuda", dtype=integer)
    assert_routed(gg_runtime.route(ids, 16), ids, 16)
    expert_map = torch.randint(limits.min, limits.max, (16,), device="cuda", dtype=integer)
    expert_map[::2] = torch.arange(8, device="cuda", dtype=integer)
    assert_routed(gg_runtime.route(ids, 16, expert_map), ids, 16, expert_map)


@pytest.mark.parametrize("tokens", [100, 20000])
def test_all_tokens_may_choose_one_expert(tokens):
    ids = torch.full((tokens, 2), 7, device="cuda")
    assert_routed(gg_runtime.route(ids, 9), ids, 9)


@pytest.mark.parametrize("tokens", [40, 4000])
def test_a_replay_sorts_the_ids_of_the_moment(tokens):
    ids = torch.randint(0, 64, (tokens, 8), device="cuda", dtype=torch.int32)
    graph, routing = captured(lambda: gg_runtime.route(ids, 64))
    for _ in range(3):
        ids.copy_(torch.randint(-1, 64, ids.shape, device="cuda"))
        for array in routing:
            array.fill_(-7)
        graph.replay()
        assert_routed(routing, ids, 64)


def test_launches_are_one_for_a_chunk_and_two_for_more():
    few, many = (torch.zeros(tokens, 8, device="cuda", dtype=torch.int32) for tokens in (128, 129))
    assert node_count(lambda: gg_runtime.route(few, 128)) == 1
    assert node_count(lambda: gg_runtime.route(many, 128)) == 2


def test_counts_of_calls_in_a_row_on_several_streams_stay_apart():
    """The counts lie in memory that the allocator hands out again at once."""
    streams = [torch.cuda.Stream() for _ in range(3)]
    ids = [torch.randint(0, 100, (9000, 8), device="cuda") for _ in range(6)]
    torch.cuda.synchronize()
    routings = []
    for index, one in enumerate(ids):
        with torch.cuda.stream(streams[index % 3]):
            routings.append(gg_runtime.route(one, 100))
    torch.cuda.synchronize()
    for one, routing in zip(ids, routings):
        assert_routed(routing, one, 100)


def test_routing_feeds_a_grouped_product():
    tokens, k, experts, hidden = 50, 4, 6, 64
    ids = torch.randint(-1, experts, (tokens, k), device="cuda")
    x = torch.randint(-2, 3, (tokens, hidden), device="cuda").bfloat16()
    w = torch.randint(-1, 2, (experts, hidden, 32), device="cuda").bfloat16()
    routing = gg_runtime.route(ids, experts)
    y = gg_runtime.grouped_mm(x[routing.token.long().clamp(min=0)], w, offs=routing.ends)
    out = gg_runtime.combine(y, routing.inverse)
    want = torch.zeros(tokens, 32, device="cuda")
    for j in range(k):
        chosen = ids[:, j] >= 0
        want[chosen] += (x[chosen, None].float() @ w[ids[chosen, j]].float())[:, 0]
    assert torch.equal(out.float(), want)
