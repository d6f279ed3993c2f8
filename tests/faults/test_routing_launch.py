"""route and combine up to the driver: kernels, arguments, grids, and the memory in between."""

import struct

import pytest

from embedded import KERNELS
from faults.fake_driver import SM_80

COUNT = ("ids", "expert_map", "counts", "entries", "groups", "id_bytes", "map_bytes", "map_size", "chunks")
PLACE = (
    "ids", "expert_map", "counts", "ends", "token", "slot", "inverse",
    "entries", "top_k", "groups", "id_bytes", "map_bytes", "map_size", "chunks", "parts",
)  # fmt: skip
COMBINE = (
    "y", "y_row", "inverse", "weights", "added", "added_row", "out", "out_row",
    "rows", "top_k", "columns", "weight_kind", "factor_bits",
)  # fmt: skip
FIELDS = {"route_count": (COUNT, "3Q6i"), "route_place": (PLACE, "7Q8i"), "combine": (COMBINE, "QqQQQqQq5i")}

ROUTE = """
    import cupy
    ids = cupy.empty({shape}, "{dtype}")
    expert_map = {expert_map}
    before = len(cupy.allocations)
    routing = gg_runtime.route(ids, {experts}, expert_map)
    report([ids.address, [array.address for array in routing], [list(array.shape) for array in routing]])
    report([address for address, _ in cupy.allocations[before:]])
"""


def arguments(launch: dict) -> dict:
    names, layout = FIELDS[launch["symbol"]]
    return dict(zip(names, struct.unpack_from(f"@{layout}", bytes.fromhex(launch["parameters"]))))


def routed(fake_cuda, shape, experts, dtype="int32", expert_map="None", **settings):
    script = ROUTE.format(shape=shape, experts=experts, dtype=dtype, expert_map=expert_map)
    ran = fake_cuda.run(script, **settings)
    (ids, outputs, shapes), allocated = ran.reported
    tokens, k = shape
    assert shapes == [[experts], [tokens * k], [tokens * k], [tokens, k]]
    return ran.launches, ids, outputs, allocated


def test_a_chunk_is_placed_by_one_launch(fake_cuda):
    (launch,), ids, (ends, token, slot, inverse), allocated = routed(fake_cuda, (64, 8), 128)
    assert (launch["symbol"], launch["grid"]) == ("route_place", [1, 1, 1]) and len(allocated) == 4
    assert arguments(launch) == {
        "ids": ids, "expert_map": 0, "counts": 0, "ends": ends, "token": token, "slot": slot, "inverse": inverse,
        "entries": 512, "top_k": 8, "groups": 128, "id_bytes": 4, "map_bytes": 0, "map_size": 0, "chunks": 1,
        "parts": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("tokens", "experts", "multiprocessors", "parts", "chunks"),
    [(4096, 128, 132, 32, 1), (32768, 128, 132, 128, 2), (32768, 256, 132, 128, 2), (32768, 128, 8, 8, 32)],
)
def test_no_more_parts_than_multiprocessors(fake_cuda, tokens, experts, multiprocessors, parts, chunks):
    settings = {"FAKE_CUDA_SMS": multiprocessors}
    (count, place), ids, _, allocated = routed(fake_cuda, (tokens, 8), experts, "int64", **settings)
    assert (count["symbol"], place["symbol"]) == ("route_count", "route_place")
    assert count["grid"] == place["grid"] == [parts, 1, 1] and count["stream"] == place["stream"]
    counted, placed = arguments(count), arguments(place)
    assert (placed["parts"], placed["chunks"], placed["id_bytes"]) == (parts, chunks, 8)
    assert placed["ids"] == ids and placed["counts"] // 128 * 128 == placed["counts"] >= allocated[4]
    assert all(counted[name] == placed[name] for name in COUNT)


@pytest.mark.parametrize(("experts", "bins"), [(1, 256), (255, 256), (256, 512), (511, 512), (512, 1024), (1023, 1024)])
def test_the_kernel_has_bins_for_all_experts_and_what_is_dropped(fake_cuda, experts, bins):
    (launch,), *_ = routed(fake_cuda, (4, 8), experts)
    kernel = KERNELS[f"route_place_sm90_{bins}"]
    assert (kernel["form"], kernel["block_n"]) == ("route_place", bins)
    assert launch["shared"] == kernel["shared_bytes"] and launch["block"] == [kernel["threads"], 1, 1]


def test_the_map_and_its_size_are_handed_over(fake_cuda):
    (launch,), *_ = routed(fake_cuda, (4, 2), 6, expert_map='cupy.empty(40, "int64")')
    found = arguments(launch)
    assert found["expert_map"] > 0 and (found["map_bytes"], found["map_size"]) == (8, 40)


def test_a_map_that_knows_no_expert_is_still_a_map(fake_cuda):
    (launch,), ids, *_ = routed(fake_cuda, (4, 2), 6, expert_map='cupy.empty(0, "int32")')
    found = arguments(launch)
    assert (found["expert_map"], found["map_bytes"], found["map_size"]) == (ids, 4, 0)


SUM = """
    import cupy
    y, inverse = cupy.empty(({rows}, {columns}), "bfloat16"), cupy.empty((5, 3), "int32")
    weights = cupy.empty((5, 3), "{weights}")
    add = cupy.empty((5, {columns}), "bfloat16")
    out = gg_runtime.combine(y, inverse, weights, add=add, scale=0.5)
    report([array.address for array in (y, inverse, weights, add, out)])
"""


@pytest.mark.parametrize("settings", [{}, SM_80], ids=["sm_90", "sm_80"])
@pytest.mark.parametrize(("weights", "kind"), [("float32", 0), ("float16", 1), ("bfloat16", 2)])
@pytest.mark.parametrize(("columns", "alignment", "programs"), [(2048, 16, 10), (1031, 2, 15)])
def test_combine_hands_over_what_it_was_given(fake_cuda, columns, alignment, programs, weights, kind, settings):
    ran = fake_cuda.run(SUM.format(rows=20, columns=columns, weights=weights), **settings)
    (launch,), ((y, inverse, factors, add, out),) = ran.launches, ran.reported
    sm = 80 if settings else 90
    kernel = KERNELS[f"combine_sm{sm}_bf16_a{alignment}"]
    assert launch["grid"] == [programs, 1, 1] == [5 * -(-columns // kernel["block_n"]), 1, 1]
    assert ran.hash_of(launch) == kernel["cubin_sha256"]
    assert arguments(launch) == {
        "y": y, "y_row": columns, "inverse": inverse, "weights": factors, "added": add, "added_row": columns,
        "out": out, "out_row": columns, "rows": 20, "top_k": 3, "columns": columns, "weight_kind": kind,
        "factor_bits": struct.unpack("i", struct.pack("f", 0.5))[0],
    }  # fmt: skip


def test_nothing_to_sum_launches_nothing(fake_cuda):
    script = """
        import cupy
        y, inverse = cupy.empty((4, 0), "float16"), cupy.empty((5, 3), "int32")
        report(list(gg_runtime.combine(y, inverse).shape))
        report(list(gg_runtime.combine(cupy.empty((4, 8), "float16"), cupy.empty((0, 3), "int32")).shape))
    """
    ran = fake_cuda.run(script)
    assert ran.reported == [[5, 0], [0, 8]] and not ran.launches
