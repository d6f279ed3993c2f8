"""`route_count`: how many entries of each part have each group; the first of the two routing launches."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .routing import load_groups, rank_among_lanes


@gluon.jit
def route_count(
    ids,
    expert_map,
    counts,
    entries,
    groups,
    id_bytes,
    map_bytes,
    map_size,
    chunks,
    CHUNK: gl.constexpr,
    BINS: gl.constexpr,
):
    """Part `program_id` of counts[parts][BINS]: bin `groups` counts the dropped ones. Needs groups < BINS."""
    LANES: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    table = gl.allocate_shared_memory(gl.int32, [BINS], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    table.store(gl.zeros([BINS], gl.int32, LANES))
    for chunk in range(chunks):
        first = (gl.program_id(0).to(gl.int64) * chunks + chunk) * CHUNK
        index = first + gl.arange(0, CHUNK, LANES)
        group = load_groups(ids, id_bytes, expert_map, map_bytes, map_size, index, entries, groups)
        rank, same = rank_among_lanes(group)
        table.atomic_scatter_add(same, group, 0, mask=rank == 0)
    bins = gl.arange(0, BINS, LANES)
    address = counts.to(gl.pointer_type(gl.int32)) + gl.program_id(0).to(gl.int64) * BINS
    gl.store(address + bins, table.load(LANES))
