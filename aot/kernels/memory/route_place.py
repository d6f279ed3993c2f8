"""`route_place`: where each entry goes when entries are sorted by group; the routing launch that writes.

A stable counting sort without atomics in global memory, so its result is the same run after run. A warp takes 32
entries in a row, a segment. `match.any` ranks them among those of their group in the segment; the counts of segments
are summed group by group in shared memory; and the counts of earlier parts come from `route_count`. A single part
counts itself, and needs no other launch.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .routing import load_groups, rank_among_lanes


@gluon.jit
def _add(x, y):
    return x + y


@gluon.jit
def count_chunk(table, group):
    """Fills `table`, [segments * bins], with the counts of each segment. Returns the ranks within segments."""
    LANES: gl.constexpr = group.type.layout
    BINS: gl.constexpr = table.shape[0] * 32 // group.shape[0]
    segment = gl.arange(0, group.shape[0], LANES) // 32
    table.store(gl.zeros([table.shape[0]], gl.int32, LANES))
    rank, same = rank_among_lanes(group)
    table.atomic_scatter_add(same, segment * BINS + group, 0, mask=rank == 0)
    return rank, segment * BINS + group


@gluon.jit
def sum_segments(table, starts, SEGMENTS: gl.constexpr):
    """Makes of each segment's counts where its entries of a group start. Returns where the next chunk's do."""
    BINS: gl.constexpr = starts.shape[0]
    COLUMNS: gl.constexpr = gl.BlockedLayout([SEGMENTS, 1], [1, 32], [1, gl.num_warps()], [1, 0])
    rows = table.reshape([SEGMENTS, BINS])
    counts = rows.load(COLUMNS)
    start = gl.convert_layout(starts, gl.SliceLayout(0, COLUMNS))
    rows.store(gl.associative_scan(counts, 0, _add) - counts + start.expand_dims(0))
    return starts + gl.convert_layout(gl.sum(counts, 0), starts.type.layout)


@gluon.jit
def count_parts(counts, parts, part, groups, bins, ROWS: gl.constexpr):
    """Of each bin: the entries of the parts before `part`, and of all parts."""
    BINS: gl.constexpr = bins.shape[0]
    COLUMNS: gl.constexpr = gl.BlockedLayout([ROWS, 1], [1, 32], [1, gl.num_warps()], [1, 0])
    before = gl.zeros([BINS], gl.int32, gl.SliceLayout(0, COLUMNS))
    total = gl.zeros([BINS], gl.int32, gl.SliceLayout(0, COLUMNS))
    column = gl.arange(0, BINS, gl.SliceLayout(0, COLUMNS)).expand_dims(0)
    for first in range(0, parts, ROWS):
        row = first + gl.arange(0, ROWS, gl.SliceLayout(1, COLUMNS)).expand_dims(1)
        address = counts.to(gl.pointer_type(gl.int32)) + row.to(gl.int64) * BINS + column
        found = gl.load(address, mask=(row < parts) & (column <= groups), other=0)
        before += gl.sum(gl.where(row < part, found, 0), 0)
        total += gl.sum(found, 0)
    return gl.convert_layout(before, bins.type.layout), gl.convert_layout(total, bins.type.layout)


@gluon.jit
def route_place(
    ids,
    expert_map,
    counts,
    ends,
    token,
    slot,
    inverse,
    entries,
    top_k,
    groups,
    id_bytes,
    map_bytes,
    map_size,
    chunks,
    parts,
    CHUNK: gl.constexpr,
    BINS: gl.constexpr,
    SM: gl.constexpr,
):
    """Writes ends[groups], token[entries], slot[entries] and inverse[entries], int32, of the entries of one part.

    Entry i of group g goes to a place in [ends[g-1], ends[g]), behind the earlier entries of the group: there `slot`
    is i and `token` is i // top_k, and inverse[i] is the place. Dropped entries go behind all groups, and are -1 in
    all three. `counts` is 0 where there is one part of one chunk. Needs groups < BINS and entries below 2^31.
    """
    if SM >= 90:
        gl.inline_asm("griddepcontrol.launch_dependents;")  # `quantize`, where it does not read what is written here
    LANES: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    SEGMENTS: gl.constexpr = CHUNK // 32
    table = gl.allocate_shared_memory(gl.int32, [SEGMENTS * BINS], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    part = gl.program_id(0)
    bins = gl.arange(0, BINS, LANES)
    index = part.to(gl.int64) * chunks * CHUNK + gl.arange(0, CHUNK, LANES)
    group = load_groups(ids, id_bytes, expert_map, map_bytes, map_size, index, entries, groups)
    rank, cell = count_chunk(table, group)
    if counts == 0:
        COLUMNS: gl.constexpr = gl.BlockedLayout([SEGMENTS, 1], [1, 32], [1, gl.num_warps()], [1, 0])
        before = gl.zeros([BINS], gl.int32, LANES)
        total = gl.convert_layout(gl.sum(table.reshape([SEGMENTS, BINS]).load(COLUMNS), 0), LANES)
    else:
        before, total = count_parts(counts, parts, part, groups, bins, 32)
    group_ends = gl.associative_scan(total, 0, _add)
    if part == 0:
        gl.store(ends.to(gl.pointer_type(gl.int32)) + bins, group_ends, mask=bins < groups)
    starts = group_ends - total + before
    for chunk in range(chunks):
        if chunk > 0:
            index += CHUNK
            group = load_groups(ids, id_bytes, expert_map, map_bytes, map_size, index, entries, groups)
            rank, cell = count_chunk(table, group)
        starts = sum_segments(table, starts, SEGMENTS)
        place = table.gather(cell, 0) + rank
        kept = group < groups
        entry = index.to(gl.int32)
        gl.store(token.to(gl.pointer_type(gl.int32)) + place, gl.where(kept, entry // top_k, -1), mask=index < entries)
        gl.store(slot.to(gl.pointer_type(gl.int32)) + place, gl.where(kept, entry, -1), mask=index < entries)
        gl.store(inverse.to(gl.pointer_type(gl.int32)) + index, gl.where(kept, place, -1), mask=index < entries)
