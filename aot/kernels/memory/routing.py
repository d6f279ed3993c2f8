"""What the two routing kernels share: a stable counting sort of entries by group.

An entry is one slot of one token: entry t * top_k + j has the expert topk_ids[t, j]. Its group is that expert, or what
the expert map makes of it; group `groups` is for entries that are dropped. Entries are taken a chunk at a time, chunks by
a CTA in a row: a part. `route_count` counts the groups of each part, `route_place` finds where each entry goes.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def load_integer(address, index, inside, element_bytes):
    """Integers of 4 or 8 bytes as int64; -1 where not `inside`."""
    if element_bytes == 8:
        value = gl.load(address.to(gl.pointer_type(gl.int64)) + index, mask=inside, other=-1)
    else:
        value = gl.load(address.to(gl.pointer_type(gl.int32)) + index, mask=inside, other=-1).to(gl.int64)
    return value


@gluon.jit
def load_groups(ids, id_bytes, expert_map, map_bytes, map_size, index, entries, groups):
    """The group of each entry, `groups` where it is dropped. Ids may hold anything."""
    inside = index < entries
    expert = load_integer(ids, index, inside, id_bytes)
    if expert_map != 0:
        known = (expert >= 0) & (expert < map_size)
        expert = load_integer(expert_map, gl.where(known, expert, 0), known, map_bytes)
    kept = (expert >= 0) & (expert < groups)
    return gl.where(kept, expert, groups.to(gl.int64)).to(gl.int32)


@gluon.jit
def rank_among_lanes(group):
    """Of each lane: how many lanes before it in its warp have its group, and how many have it in all."""
    return gl.inline_asm_elementwise(
        "{ .reg .b32 same, below; match.any.sync.b32 same, $2, 0xffffffff; mov.u32 below, %lanemask_lt; "
        "and.b32 below, below, same; popc.b32 $0, below; popc.b32 $1, same; }",
        "=r,=r,r",
        [group],
        dtype=(gl.int32, gl.int32),
        is_pure=False,
        pack=1,
    )
